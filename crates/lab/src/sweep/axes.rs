//! The swept values of a sweep, and their combinations.
//!
//! Main types: [`Axis`], [`Combination`]; [`combine`] makes the product of all axes, or pairs them. A list with an
//! empty value between commas, or with a value twice, is probably a typing error and is refused.
//!
//! # Locking
//! None.

use crate::error::{Error, Result};

/// The maximum number of points of a sweep: each has its own directory and process.
pub const POINTS_MAX: usize = 100_000;

/// A name with its values, in the order of the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Name of the parameter or option.
    pub name: String,
    /// The values: at least one, and all different.
    pub values: Vec<String>,
}

/// One value of each axis, in the order of the axes.
pub type Combination = Vec<(String, String)>;

impl Axis {
    /// Parses `NAME=A,B,C`. If a parameter is itself a list, its values are separated by slashes: `NAME=1,2/3,4`.
    pub fn parse(setting: &str, of_lists: bool) -> Result<Axis> {
        let (name, list) = setting
            .split_once('=')
            .filter(|(name, _)| !name.is_empty())
            .ok_or_else(|| Error::Usage(format!("'{setting}' is not NAME=A,B")))?;
        let values: Vec<String> = list.split(if of_lists { '/' } else { ',' }).map(str::to_owned).collect();
        for (i, value) in values.iter().enumerate() {
            if value.is_empty() {
                let of = values.len();
                return Err(Error::Usage(format!("{setting}: value {} of {of} is empty", i + 1)));
            }
            if values[..i].iter().any(|earlier| same(earlier, value)) {
                return Err(Error::Usage(format!("{setting}: {value} is there twice")));
            }
        }
        Ok(Axis { name: name.to_owned(), values })
    }
}

/// Whether two values are equal, as `4` and `04` are.
fn same(a: &str, b: &str) -> bool {
    a == b || matches!((a.parse::<u64>(), b.parse::<u64>()), (Ok(a), Ok(b)) if a == b)
}

/// Every combination, with the last axis changing fastest. If zipped, the first values are combined, then the second
/// ones, and so on; an axis with a single value keeps it.
pub fn combine(axes: &[Axis], zip: bool) -> Result<Vec<Combination>> {
    for (i, axis) in axes.iter().enumerate() {
        if axes[..i].iter().any(|earlier| earlier.name == axis.name) {
            let name = &axis.name;
            return Err(Error::Usage(format!("{name} is set twice: write {name}=A,B once")));
        }
    }
    if zip {
        return zipped(axes);
    }
    let mut points = vec![Vec::new()];
    for axis in axes {
        if points.len().saturating_mul(axis.values.len()) > POINTS_MAX {
            return Err(Error::Usage(format!("more than {POINTS_MAX} points: sweep fewer values")));
        }
        points = points
            .iter()
            .flat_map(|point: &Combination| {
                axis.values.iter().map(move |v| [&point[..], &[(axis.name.clone(), v.clone())]].concat())
            })
            .collect();
    }
    Ok(points)
}

fn zipped(axes: &[Axis]) -> Result<Vec<Combination>> {
    let length = axes.iter().map(|a| a.values.len()).max().unwrap_or(1);
    if let Some(odd) = axes.iter().find(|a| a.values.len() != length && a.values.len() != 1) {
        let longest = axes.iter().find(|a| a.values.len() == length).map_or("", |a| a.name.as_str());
        return Err(Error::Usage(format!(
            "--zip: {} has {} values and {longest} has {length}: lists have the same length, or one value",
            odd.name,
            odd.values.len()
        )));
    }
    let at = |axis: &Axis, i: usize| axis.values[if axis.values.len() == 1 { 0 } else { i }].clone();
    Ok((0..length).map(|i| axes.iter().map(|a| (a.name.clone(), at(a, i))).collect()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(settings: &[&str], zip: bool) -> Result<Vec<String>> {
        let axes = settings.iter().map(|s| Axis::parse(s, false)).collect::<Result<Vec<_>>>()?;
        let text = |p: &Combination| p.iter().map(|(n, v)| format!("{n}{v}")).collect::<Vec<_>>().concat();
        Ok(combine(&axes, zip)?.iter().map(text).collect())
    }

    #[test]
    fn products_and_pairs() {
        assert_eq!(points(&["a=1,2", "b=3,4"], false).unwrap(), ["a1b3", "a1b4", "a2b3", "a2b4"]);
        assert_eq!(points(&["a=1,2", "b=3,4", "c=5"], true).unwrap(), ["a1b3c5", "a2b4c5"]);
        assert_eq!(points(&[], false).unwrap(), [""]);
        assert_eq!(Axis::parse("a=1,2/3", true).unwrap().values, ["1,2", "3"]);
    }

    #[test]
    fn slips_are_named() {
        for (settings, zip, said) in [
            (&["a=1,,2"][..], false, "value 2 of 3 is empty"),
            (&["a="], false, "value 1 of 1 is empty"),
            (&["a=4,04"], false, "04 is there twice"),
            (&["a=x,y,x"], false, "x is there twice"),
            (&["a"], false, "not NAME=A,B"),
            (&["=1"], false, "not NAME=A,B"),
            (&["a=1", "a=2"], false, "a is set twice"),
            (&["a=1,2", "b=1,2,3"], true, "a has 2 values and b has 3"),
        ] {
            let e = points(settings, zip).unwrap_err().to_string();
            assert!(e.contains(said), "{e}");
        }
        let many: String = (0..400).map(|i| format!("{i},")).collect();
        let many = many.trim_end_matches(',');
        let all = [format!("a={many}"), format!("b={many}")];
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        assert!(points(&all, false).unwrap_err().to_string().contains("more than"));
    }
}
