//! From bytes to [`BootConfig`]: every problem with its JSON path and line, not only the first.

use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::Value;

use super::wire::BootConfig;

/// Larger documents are refused before they are read: a boot config is a page or two, an Ignition file a
/// few hundred KiB.
pub const CONFIG_LIMIT: usize = 4 << 20;

/// After so many problems the rest would be noise.
const PROBLEM_LIMIT: usize = 50;

/// One thing that is wrong with a boot config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// JSON path, such as `disk.select.serial`; empty for the whole document.
    pub path: String,
    /// Line in the document, from 1; 0 where it is not known.
    pub line: usize,
    /// What is wrong and what is allowed.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "line {}: ", self.line)?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

/// Reads a boot config; the error lists every problem of syntax, unknown keys and types.
pub fn parse(bytes: &[u8]) -> Result<BootConfig, Vec<Problem>> {
    let whole = |message: String, line| {
        vec![Problem {
            path: String::new(),
            line,
            message,
        }]
    };
    if bytes.len() > CONFIG_LIMIT {
        return Err(whole(
            format!("{} bytes are too many: at most {CONFIG_LIMIT}", bytes.len()),
            0,
        ));
    }
    let mut value: Value = match serde_json::from_slice(bytes) {
        Ok(value) => value,
        Err(e) => return Err(whole(format!("not JSON: {e}"), e.line())),
    };
    // Values are re-read with their problem removed until no further one shows up.
    let mut problems = Vec::new();
    match typed(bytes) {
        Ok(config) => return Ok(config),
        Err(problem) => problems.push(problem),
    }
    while problems.len() < PROBLEM_LIMIT {
        let Some(last) = problems.last() else { break };
        if !remove(&mut value, &last.path) {
            break;
        }
        let Ok(text) = serde_json::to_vec(&value) else {
            break;
        };
        match typed(&text) {
            Ok(_) => break,
            Err(mut problem) => {
                // A required key whose bad value was removed a moment ago is no new problem.
                if problem.message.starts_with("missing field")
                    && problems.iter().any(|p| names(&problem, p))
                {
                    break;
                }
                problem.line = line_of(bytes, &problem.path);
                problems.push(problem);
            }
        }
    }
    Err(problems)
}

/// Whether the missing field of `missing` is the one that `earlier` complained about.
fn names(missing: &Problem, earlier: &Problem) -> bool {
    let field = missing.message.split('`').nth(1).unwrap_or_default();
    let parent = if missing.path.is_empty() {
        String::new()
    } else {
        format!("{}.", missing.path)
    };
    earlier.path == format!("{parent}{field}")
}

fn typed(bytes: &[u8]) -> Result<BootConfig, Problem> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let parsed = serde_path_to_error::deserialize::<_, BootConfig>(&mut reader);
    parsed.map_err(|e| {
        let path = match e.path().to_string() {
            p if p == "." => String::new(),
            p => p,
        };
        // serde_json ends its texts with the place, which stands in front already.
        let text = e.inner().to_string();
        let message = text.split(" at line ").next().unwrap_or(&text).to_owned();
        Problem {
            path,
            line: e.inner().line(),
            message,
        }
    })
}

/// Takes the value at `path` out of `value`; false where there is none.
fn remove(value: &mut Value, path: &str) -> bool {
    let mut segments = segments(path);
    let Some(last) = segments.pop() else {
        return false;
    };
    let mut at = value;
    for segment in segments {
        let next = match segment {
            Segment::Key(key) => at.get_mut(key),
            Segment::Index(i) => at.get_mut(i),
        };
        match next {
            Some(inner) => at = inner,
            None => return false,
        }
    }
    match (last, at) {
        (Segment::Key(key), Value::Object(map)) => map.remove(key).is_some(),
        (Segment::Index(i), Value::Array(items)) if i < items.len() => {
            items.remove(i);
            true
        }
        _ => false,
    }
}

#[derive(Clone, Copy, Debug)]
enum Segment<'a> {
    Key(&'a str),
    Index(usize),
}

fn segments(path: &str) -> Vec<Segment<'_>> {
    path.split('.')
        .filter(|p| !p.is_empty())
        .flat_map(|part| {
            let (key, rest) = part.split_once('[').unwrap_or((part, ""));
            let indexes = rest
                .split('[')
                .filter_map(|i| i.trim_end_matches(']').parse().ok());
            let key = (!key.is_empty()).then_some(Segment::Key(key));
            key.into_iter().chain(indexes.map(Segment::Index))
        })
        .collect()
}

/// The line at which the value of `path` ends its first token; 0 where the path does not exist.
///
/// serde_json knows the place only of errors, so the walk ends in one on purpose when it has arrived.
pub fn line_of(bytes: &[u8], path: &str) -> usize {
    let segments = segments(path);
    if segments.is_empty() {
        return 0;
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    match Find(&segments).deserialize(&mut reader) {
        Err(e) if e.to_string().starts_with(FOUND) => e.line(),
        _ => 0,
    }
}

const FOUND: &str = "arrived";

struct Find<'a>(&'a [Segment<'a>]);

impl<'de> DeserializeSeed<'de> for Find<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.0.is_empty() {
            Err(D::Error::custom(FOUND))
        } else {
            deserializer.deserialize_any(self)
        }
    }
}

impl<'de> Visitor<'de> for Find<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or a list")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Some((Segment::Key(wanted), rest)) = self.0.split_first() else {
            return Ok(());
        };
        while let Some(key) = map.next_key::<String>()? {
            if key == *wanted {
                map.next_value_seed(Find(rest))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let Some((Segment::Index(wanted), rest)) = self.0.split_first() else {
            return Ok(());
        };
        for _ in 0..*wanted {
            if seq.next_element::<IgnoredAny>()?.is_none() {
                return Ok(());
            }
        }
        seq.next_element_seed(Find(rest))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOOD: &str = r#"{
  "apiVersion": "ironroot.dev/v1alpha1",
  "kind": "BootConfig",
  "image": { "url": "https://example.org/a.raw" },
  "disk": { "select": { "serial": "x" } }
}"#;

    fn problems(text: &str) -> Vec<String> {
        parse(text.as_bytes())
            .unwrap_err()
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn a_good_config_reads() {
        let config = parse(GOOD.as_bytes()).unwrap();
        assert_eq!(config.disk.unwrap().select.serial.as_deref(), Some("x"));
    }

    #[test]
    fn every_problem_has_path_and_line() {
        let text = GOOD
            .replace("serial", "serail")
            .replace("\"url\":", "\"headers\": 5, \"url\":");
        let all = problems(&text);
        assert_eq!(all.len(), 2, "{all:?}");
        assert!(
            all[0].starts_with("line 4: image.headers: invalid type: integer `5`"),
            "{all:?}"
        );
        assert!(all[1].starts_with(
            "line 5: disk.select.serail: unknown field `serail`, expected one of `serial`"
        ));
    }

    #[test]
    fn an_unknown_version_and_what_is_no_json_name_the_line() {
        let all = problems(&GOOD.replace("v1alpha1", "v9"));
        assert_eq!(all.len(), 1, "{all:?}");
        assert!(
            all[0].starts_with("line 2: apiVersion: unknown variant `ironroot.dev/v9`"),
            "{all:?}"
        );
        assert!(
            problems("{\n\"a\": \n")
                .first()
                .unwrap()
                .starts_with("line 3: not JSON")
        );
        assert!(
            problems("<html>")
                .first()
                .unwrap()
                .starts_with("line 1: not JSON")
        );
    }

    #[test]
    fn a_missing_key_names_its_object() {
        let all = problems(&GOOD.replace("\"url\": \"https://example.org/a.raw\"", ""));
        assert_eq!(all.len(), 1);
        assert!(
            all[0].contains("image") && all[0].contains("missing field `url`"),
            "{all:?}"
        );
    }

    #[test]
    fn lines_of_list_items() {
        let text = "{\n\"a\": [\n1,\n{\"b\":\n2}]}";
        assert_eq!(line_of(text.as_bytes(), "a[1].b"), 5);
        assert_eq!(line_of(text.as_bytes(), "a[7]"), 0);
        assert_eq!(line_of(text.as_bytes(), "c"), 0);
    }

    proptest! {
        #[test]
        fn any_bytes_give_problems_not_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn a_config_with_any_byte_changed_never_panics(at in 0..GOOD.len(), byte in 0x20u8..0x7f) {
            let mut bytes = GOOD.as_bytes().to_vec();
            bytes[at] = byte;
            let _ = parse(&bytes);
        }
    }
}
