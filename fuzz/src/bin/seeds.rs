//! `pcc-fuzz-seeds TARGET FOLDER` writes the seeds of a target into a folder, one file each; without arguments, lists the targets.

use pcc_fuzz::{TARGETS, Target, seeds};
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match args.as_slice() {
        [] => {
            TARGETS.iter().for_each(|t| println!("{}", t.name));
            Ok(())
        }
        [name, folder] => write(name, Path::new(folder)),
        _ => Err("give a target and a folder".to_owned()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn write(name: &str, folder: &Path) -> Result<(), String> {
    let target = Target::find(name).ok_or_else(|| format!("there is no target `{name}`"))?;
    std::fs::create_dir_all(folder).map_err(|e| e.to_string())?;
    for (i, (_, bytes)) in seeds::seeds(target)?.iter().enumerate() {
        std::fs::write(folder.join(format!("seed-{i:03}")), bytes).map_err(|e| e.to_string())?;
    }
    Ok(())
}
