//! Handles and descriptors, by the numbers that callers have for them, and their attributes. (cuBLAS documentation, "cuBLASLt datatypes
//! reference".)

use crate::blas::{EPILOGUE_BIAS, EPILOGUE_DEFAULT, EPILOGUE_GELU, EPILOGUE_RELU, bytes};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// `cublasLtMatrixLayout_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub dtype: u32,
    pub rows: u64,
    pub cols: u64,
    pub leading: u64,
    pub count: u32,
    pub stride: i64,
}

/// `cublasLtMatmulDesc_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Desc {
    pub transposed: [bool; 2],
    pub epilogue: u32,
    pub bias: u64,
}

/// `cublasLtMatmulPreference_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preference {
    pub workspace: u64,
    /// Bytes that divide the addresses of A, B, C and D.
    pub aligned: [u32; 4],
}

/// What a kernel was chosen for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// But for the bias's address.
    pub desc: Desc,
    /// Of A, B, C and D.
    pub layouts: [Layout; 4],
    pub preference: Preference,
}

#[derive(Clone, Copy, Debug)]
pub enum Object {
    /// With the context that it belongs to.
    Handle(u64),
    Layout(Layout),
    Desc(Desc),
    Preference(Preference),
    Choice(Choice),
}

/// All that there are.
#[derive(Debug, Default)]
pub struct Objects {
    last: u64,
    all: HashMap<u64, Object>,
}

/// Why a call is none that the real library would take.
pub type Misuse = String;

pub fn objects() -> MutexGuard<'static, Objects> {
    static OBJECTS: OnceLock<Mutex<Objects>> = OnceLock::new();
    OBJECTS.get_or_init(Default::default).lock().unwrap_or_else(PoisonError::into_inner)
}

impl Objects {
    pub fn add(&mut self, object: Object) -> u64 {
        // Numbers that are no addresses of anything.
        self.last += 8;
        self.all.insert(self.last, object);
        self.last
    }

    pub fn remove(&mut self, number: u64) -> Result<(), Misuse> {
        self.all.remove(&number).map(drop).ok_or_else(|| format!("{number:#x} is destroyed, and is nothing"))
    }

    pub fn get(&self, number: u64) -> Option<Object> {
        self.all.get(&number).copied()
    }

    pub fn layout(&self, number: u64) -> Result<Layout, Misuse> {
        match self.get(number) {
            Some(Object::Layout(layout)) => Ok(layout),
            other => Err(format!("{other:?} in place of a matrix's layout")),
        }
    }

    pub fn desc(&self, number: u64) -> Result<Desc, Misuse> {
        match self.get(number) {
            Some(Object::Desc(desc)) => Ok(desc),
            other => Err(format!("{other:?} in place of a product's descriptor")),
        }
    }

    /// Sets an attribute of a descriptor of any kind.
    pub fn set(&mut self, number: u64, attribute: u32, value: &[u8]) -> Result<(), Misuse> {
        match self.all.get_mut(&number) {
            Some(Object::Layout(layout)) => layout.set(attribute, value),
            Some(Object::Desc(desc)) => desc.set(attribute, value),
            Some(Object::Preference(preference)) => preference.set(attribute, value),
            other => Err(format!("an attribute of {other:?}")),
        }
    }
}

/// A value of just this size.
fn exactly<const N: usize>(what: &str, value: &[u8]) -> Result<[u8; N], Misuse> {
    value.try_into().map_err(|_| format!("{what} has {N} bytes, not {}", value.len()))
}

impl Layout {
    pub fn new(dtype: u32, rows: u64, cols: u64, leading: i64) -> Result<Self, Misuse> {
        let leading = u64::try_from(leading).map_err(|_| format!("leading dim {leading}"))?;
        if bytes(dtype).is_none() || rows == 0 || cols == 0 || leading < rows {
            return Err(format!("a matrix of {rows} x {cols}, leading dim {leading}, type {dtype}"));
        }
        Ok(Layout { dtype, rows, cols, leading, count: 1, stride: 0 })
    }

    fn set(&mut self, attribute: u32, value: &[u8]) -> Result<(), Misuse> {
        match attribute {
            5 => {
                let count = i32::from_ne_bytes(exactly("CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT", value)?);
                let count = u32::try_from(count).ok().filter(|&n| n > 0);
                self.count = count.ok_or("a batch of no matrices")?;
            }
            6 => {
                let bytes = exactly("CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET", value)?;
                self.stride = i64::from_ne_bytes(bytes);
            }
            other => return Err(format!("attribute {other} of a matrix's layout")),
        }
        Ok(())
    }
}

impl Desc {
    pub const PLAIN: Self = Desc { transposed: [false; 2], epilogue: EPILOGUE_DEFAULT, bias: 0 };

    fn set(&mut self, attribute: u32, value: &[u8]) -> Result<(), Misuse> {
        match attribute {
            3 | 4 => {
                let operation = i32::from_ne_bytes(exactly("CUBLASLT_MATMUL_DESC_TRANSA or TRANSB", value)?);
                if !matches!(operation, 0 | 1) {
                    return Err(format!("operation {operation} on a matrix"));
                }
                self.transposed[attribute as usize - 3] = operation == 1;
            }
            7 => {
                let epilogue = u32::from_ne_bytes(exactly("CUBLASLT_MATMUL_DESC_EPILOGUE", value)?);
                let known = [EPILOGUE_RELU, EPILOGUE_GELU].map(|f| [f, f | EPILOGUE_BIAS]).concat();
                if ![EPILOGUE_DEFAULT, EPILOGUE_BIAS].contains(&epilogue) && !known.contains(&epilogue) {
                    return Err(format!("epilogue {epilogue}"));
                }
                self.epilogue = epilogue;
            }
            8 => self.bias = u64::from_ne_bytes(exactly("CUBLASLT_MATMUL_DESC_BIAS_POINTER", value)?),
            other => return Err(format!("attribute {other} of a product's descriptor")),
        }
        Ok(())
    }

    pub fn has_bias(&self) -> bool {
        self.epilogue & EPILOGUE_BIAS != 0
    }
}

impl Preference {
    /// What it begins with: no workspace, and addresses that 256 divides.
    pub const DEFAULT: Self = Preference { workspace: 0, aligned: [256; 4] };

    fn set(&mut self, attribute: u32, value: &[u8]) -> Result<(), Misuse> {
        match attribute {
            1 => {
                let bytes = exactly("CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES", value)?;
                self.workspace = u64::from_ne_bytes(bytes);
            }
            5..=8 => {
                let bytes = exactly("CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_.._BYTES", value)?;
                let aligned = u32::from_ne_bytes(bytes);
                if !aligned.is_power_of_two() {
                    return Err(format!("addresses that {aligned} divides"));
                }
                self.aligned[attribute as usize - 5] = aligned;
            }
            other => return Err(format!("attribute {other} of a preference")),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blas::REAL_F32;

    #[test]
    fn attributes_have_their_sizes_and_nothing_else_is_one() {
        let mut objects = Objects::default();
        let layout = objects.add(Object::Layout(Layout::new(REAL_F32, 2, 3, 4).unwrap()));
        assert!(objects.set(layout, 5, &7i32.to_ne_bytes()).is_ok());
        assert_eq!(objects.layout(layout).unwrap().count, 7);
        for (attribute, value) in [(5, &[0u8; 4][..]), (5, &[1; 8]), (1, &[0; 4]), (99, &[0; 8])] {
            assert!(objects.set(layout, attribute, value).is_err(), "{attribute} {value:?}");
        }
        let desc = objects.add(Object::Desc(Desc::PLAIN));
        assert!(objects.set(desc, 7, &36u32.to_ne_bytes()).is_ok() && objects.desc(desc).unwrap().has_bias());
        for (attribute, value) in [(7, 33u32), (7, 0), (3, 2), (26, 0)] {
            assert!(objects.set(desc, attribute, &value.to_ne_bytes()).is_err(), "{attribute} {value}");
        }
        let preference = objects.add(Object::Preference(Preference::DEFAULT));
        assert!(objects.set(preference, 8, &16u32.to_ne_bytes()).is_ok());
        assert!(objects.set(preference, 8, &12u32.to_ne_bytes()).is_err());
        assert!(objects.set(preference, 1, &16u32.to_ne_bytes()).is_err());
        assert!(objects.layout(desc).is_err() && objects.desc(layout).is_err());
        assert!(objects.remove(layout).is_ok() && objects.remove(layout).is_err());
        assert!(objects.set(layout, 5, &7i32.to_ne_bytes()).is_err());
    }

    #[test]
    fn matrices_have_room_for_their_columns() {
        for (rows, cols, leading) in [(0, 1, 1), (1, 0, 1), (3, 3, 2), (3, 3, -3)] {
            assert!(Layout::new(REAL_F32, rows, cols, leading).is_err());
        }
        assert!(Layout::new(1, 1, 1, 1).is_err(), "f64");
    }
}
