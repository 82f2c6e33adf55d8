//! The device mesh: named axes, outermost first, and sub-axes.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A mesh axis. The order of the variants is the order in the mesh, outermost first. `Pp` is MPMD (each
/// coordinate runs another program), the others are SPMD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Axis {
    Pp,
    Dp,
    Cp,
    Ep,
    Tp,
}

impl Axis {
    pub const ALL: [Axis; 5] = [Axis::Pp, Axis::Dp, Axis::Cp, Axis::Ep, Axis::Tp];

    pub fn name(self) -> &'static str {
        match self {
            Axis::Pp => "pp",
            Axis::Dp => "dp",
            Axis::Cp => "cp",
            Axis::Ep => "ep",
            Axis::Tp => "tp",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|a| a.name() == name)
    }
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A whole axis or a sub-axis of it. An axis of size n is seen as `pre x size x post` (major to minor,
/// product n); the reference means the middle part. The whole axis has pre 1 and size n.
/// Text form: `tp` for the whole axis, `tp:(pre)size` for a part, as in Shardy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct AxisRef {
    pub axis: Axis,
    pub pre: u32,
    pub size: u32,
}

impl From<AxisRef> for String {
    fn from(r: AxisRef) -> String {
        r.to_string()
    }
}

impl fmt::Display for AxisRef {
    /// The full form, `tp:(pre)size`, which needs no mesh to be read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:({}){}", self.axis, self.pre, self.size)
    }
}

impl TryFrom<String> for AxisRef {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no axis; write tp:(1)8");
        let (axis, rest) = text.split_once(":(").ok_or_else(wrong)?;
        let (pre, size) = rest.split_once(')').ok_or_else(wrong)?;
        let axis = Axis::from_name(axis).ok_or_else(wrong)?;
        let (pre, size) = (pre.parse().map_err(|_| wrong())?, size.parse().map_err(|_| wrong())?);
        if pre == 0 || size == 0 { Err(wrong()) } else { Ok(AxisRef { axis, pre, size }) }
    }
}

impl AxisRef {
    /// Whether two references may not both split one value: they share a part of the axis, or cut it in ways that do not fit
    /// (of 12, `(1)3` and `(4)3`: thirds of the axis and thirds of its quarters are not independent coordinates).
    pub fn overlaps(self, other: AxisRef) -> bool {
        let (first, second) = if self.pre <= other.pre { (self, other) } else { (other, self) };
        let end = u64::from(first.pre) * u64::from(first.size);
        self.axis == other.axis
            && self.size > 1
            && other.size > 1
            && (u64::from(second.pre) < end || !u64::from(second.pre).is_multiple_of(end))
    }
}

/// Sizes of the axes, in the order of [`Axis::ALL`]; an axis that is not used has size 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Mesh {
    pub pp: u32,
    pub dp: u32,
    pub cp: u32,
    pub ep: u32,
    pub tp: u32,
}

impl Default for Mesh {
    fn default() -> Self {
        Self { pp: 1, dp: 1, cp: 1, ep: 1, tp: 1 }
    }
}

/// The most devices a mesh may have.
pub const MAX_DEVICES: u64 = 1 << 20;

impl Mesh {
    pub fn size(&self, axis: Axis) -> u32 {
        match axis {
            Axis::Pp => self.pp,
            Axis::Dp => self.dp,
            Axis::Cp => self.cp,
            Axis::Ep => self.ep,
            Axis::Tp => self.tp,
        }
    }

    pub fn size_mut(&mut self, axis: Axis) -> &mut u32 {
        match axis {
            Axis::Pp => &mut self.pp,
            Axis::Dp => &mut self.dp,
            Axis::Cp => &mut self.cp,
            Axis::Ep => &mut self.ep,
            Axis::Tp => &mut self.tp,
        }
    }

    /// Number of devices: the product of all axes. Sizes are checked where they enter (at most 2^20 devices).
    pub fn devices(&self) -> usize {
        Axis::ALL.iter().map(|&a| self.size(a) as usize).product()
    }

    /// Devices of one pipeline stage.
    pub fn stage_devices(&self) -> usize {
        self.devices() / self.pp as usize
    }

    /// The whole of `axis`.
    pub fn whole(&self, axis: Axis) -> AxisRef {
        AxisRef { axis, pre: 1, size: self.size(axis) }
    }

    /// Whether there is a device, and no absurd number of them: axes multiply to 1 to [`MAX_DEVICES`].
    ///
    /// # Errors
    /// The sizes of the axes, and what is allowed.
    pub fn check(&self) -> Result<(), String> {
        let sizes = Axis::ALL.map(|a| u64::from(self.size(a)));
        let devices = sizes.iter().fold(1, |n: u64, &size| n.saturating_mul(size));
        if sizes.contains(&0) || devices > MAX_DEVICES {
            let names = Axis::ALL.map(Axis::name).join(", ");
            return Err(format!(
                "it has {sizes:?} devices along {names}, not 1 to {MAX_DEVICES} all together"
            ));
        }
        Ok(())
    }

    /// A sub-axis, or `None` when pre x size does not divide the axis.
    pub fn part(&self, axis: Axis, pre: u32, size: u32) -> Option<AxisRef> {
        let taken = pre.checked_mul(size)?;
        (taken > 0 && self.size(axis).is_multiple_of(taken)).then_some(AxisRef { axis, pre, size })
    }

    /// Coordinates of a device, in the order of [`Axis::ALL`]; device numbers count the last axis fastest.
    pub fn coords(&self, device: usize) -> [u32; 5] {
        let mut rest = device;
        let mut coords = [0; 5];
        for (i, &a) in Axis::ALL.iter().enumerate().rev() {
            let n = self.size(a) as usize;
            coords[i] = (rest % n) as u32;
            rest /= n;
        }
        coords
    }

    /// The inverse of [`Mesh::coords`].
    pub fn device(&self, coords: [u32; 5]) -> usize {
        Axis::ALL.iter().enumerate().fold(0, |d, (i, &a)| d * self.size(a) as usize + coords[i] as usize)
    }

    /// Coordinate of a device along an axis or sub-axis, in `0..r.size`.
    pub fn coord(&self, device: usize, r: AxisRef) -> usize {
        let c = self.coords(device)[r.axis as usize];
        let post = self.size(r.axis) / (r.pre * r.size);
        ((c / post) % r.size) as usize
    }

    /// The devices that differ from `device` only along `axes`, ordered by their coordinates along `axes`
    /// (first axis major). `device` is among them, at [`Mesh::index_in`].
    pub fn group(&self, device: usize, axes: &[AxisRef]) -> Vec<usize> {
        let mut group = vec![device];
        for &r in axes {
            group = group
                .iter()
                .flat_map(|&d| (0..r.size as usize).map(move |c| self.with_coord(d, r, c)))
                .collect();
        }
        group
    }

    /// Position of `device` in [`Mesh::group`] over `axes`.
    pub fn index_in(&self, device: usize, axes: &[AxisRef]) -> usize {
        axes.iter().fold(0, |i, &r| i * r.size as usize + self.coord(device, r))
    }

    fn with_coord(&self, device: usize, r: AxisRef, c: usize) -> usize {
        let post = (self.size(r.axis) / (r.pre * r.size)) as usize;
        let mut coords = self.coords(device);
        let old = self.coord(device, r);
        let i = r.axis as usize;
        coords[i] = (coords[i] as usize + c * post - old * post) as u32;
        self.device(coords)
    }

    /// Text form of a reference in this mesh: `tp` or `tp:(2)4`.
    pub fn axis_text(&self, r: AxisRef) -> String {
        if r.pre == 1 && r.size == self.size(r.axis) {
            r.axis.name().to_owned()
        } else {
            format!("{}:({}){}", r.axis, r.pre, r.size)
        }
    }
}

/// Product of the sizes of `axes`: the number of devices in a group over them.
pub fn group_size(axes: &[AxisRef]) -> usize {
    axes.iter().map(|a| a.size as usize).product()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sub_axes_cut_an_axis_major_to_minor() {
        let mesh = Mesh { tp: 8, dp: 2, ..Mesh::default() };
        let (a, b) = (mesh.part(Axis::Tp, 1, 4).unwrap(), mesh.part(Axis::Tp, 4, 2).unwrap());
        // Device 13 is dp 1, tp 5: 5 = 2 * 2 + 1.
        assert_eq!((mesh.coord(13, a), mesh.coord(13, b)), (2, 1));
        assert_eq!(mesh.group(13, &[b]), vec![12, 13]);
        assert_eq!(mesh.group(13, &[a]), vec![9, 11, 13, 15]);
        assert_eq!(mesh.group(13, &[a, b]), (8..16).collect::<Vec<_>>());
        assert!(!a.overlaps(b));
        assert!(a.overlaps(mesh.whole(Axis::Tp)));
        assert_eq!(mesh.part(Axis::Tp, 1, 3), None);
        // Halves of the axis and halves of its thirds are independent; thirds of it and thirds of its quarters are not.
        let part = |pre, size| AxisRef { axis: Axis::Tp, pre, size };
        assert!(!part(1, 3).overlaps(part(3, 2)) && !part(6, 2).overlaps(part(1, 2)));
        assert!(part(1, 3).overlaps(part(4, 3)) && part(4, 3).overlaps(part(1, 3)));
    }
}
