//! Quantities as a boot config writes them: durations, amounts with a unit or in percent, comparisons.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::units::{Bytes, ParseError, parse_duration};

/// Makes a type a JSON string by its `FromStr` and `Display`, with a pattern for the schema.
macro_rules! json_string {
    ($name:ident, $pattern:literal, $description:literal) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                let text = Cow::<'_, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({
                    "type": "string",
                    "pattern": $pattern,
                    "description": $description,
                })
            }
        }
    };
}

/// `30s`, `10m`, `2h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HumanDuration(pub Duration);

impl FromStr for HumanDuration {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<HumanDuration, ParseError> {
        parse_duration(text).map(HumanDuration)
    }
}

impl fmt::Display for HumanDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.subsec_millis() == 0 {
            write!(f, "{}s", self.0.as_secs())
        } else {
            write!(f, "{}ms", self.0.as_millis())
        }
    }
}

json_string!(
    HumanDuration,
    "^[0-9]+(ms|s|m|h)$|^0$",
    "a duration: 30s, 10m, 2h"
);

/// A number of bytes: `512MiB`, `20GB`, `4096`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteSize(pub Bytes);

impl FromStr for ByteSize {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<ByteSize, ParseError> {
        text.parse().map(ByteSize)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.0)
    }
}

json_string!(
    ByteSize,
    "^[0-9]+ ?([KMGT]i?B?|[kMGT]B|B)?$",
    "a size: 512MiB, 20GB"
);

/// A number of bytes, or a share of the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// Bytes.
    Bytes(Bytes),
    /// Percent of the whole, 1 to 100.
    Percent(u8),
}

impl FromStr for Amount {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Amount, ParseError> {
        match text.strip_suffix('%') {
            None => text.parse().map(Amount::Bytes),
            Some(number) => match number.parse() {
                Ok(percent @ 1..=100) => Ok(Amount::Percent(percent)),
                _ => Err(ParseError(format!(
                    "{text:?} is not a percentage from 1% to 100%"
                ))),
            },
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Amount::Bytes(bytes) => write!(f, "{}", bytes.0),
            Amount::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

json_string!(
    Amount,
    "^[0-9]+ ?([KMGT]i?B?|[kMGT]B|B)?$|^[0-9]+%$",
    "a size (512MiB, 20GB) or a percentage (50%)"
);

/// An amount, or all that is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeText {
    /// So much.
    Amount(Amount),
    /// All that is left.
    Rest,
}

impl FromStr for SizeText {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<SizeText, ParseError> {
        if text == "Rest" {
            Ok(SizeText::Rest)
        } else {
            text.parse().map(SizeText::Amount)
        }
    }
}

impl fmt::Display for SizeText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SizeText::Amount(amount) => amount.fmt(f),
            SizeText::Rest => f.write_str("Rest"),
        }
    }
}

json_string!(
    SizeText,
    "^[0-9]+ ?([KMGT]i?B?|[kMGT]B|B)?$|^[0-9]+%$|^Rest$",
    "a size (512MiB, 20GB), a percentage (50%), or Rest"
);

/// A size and how it is compared: `>=200GiB`, `<2TB`, `=500GB`; without an operator: equal. `200GiB..2TB`: no
/// less than the one and no more than the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// The operator.
    pub operator: Operator,
    /// The right-hand side.
    pub size: Bytes,
}

/// A comparison operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// `>=`
    AtLeast,
    /// `>`
    MoreThan,
    /// `<=`
    AtMost,
    /// `<`
    LessThan,
    /// `=`
    Equal,
    /// No less than the size, and no more than this.
    UpTo(Bytes),
}

impl Operator {
    const TABLE: [(&'static str, Operator); 5] = [
        // Longer ones first: `>=` begins with `>`.
        (">=", Operator::AtLeast),
        ("<=", Operator::AtMost),
        (">", Operator::MoreThan),
        ("<", Operator::LessThan),
        ("=", Operator::Equal),
    ];
}

impl Comparison {
    /// Whether `size` satisfies this.
    pub fn allows(self, size: Bytes) -> bool {
        match self.operator {
            Operator::AtLeast => size >= self.size,
            Operator::MoreThan => size > self.size,
            Operator::AtMost => size <= self.size,
            Operator::LessThan => size < self.size,
            Operator::Equal => size == self.size,
            Operator::UpTo(most) => (self.size..=most).contains(&size),
        }
    }
}

impl FromStr for Comparison {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Comparison, ParseError> {
        if let Some((least, most)) = text.split_once("..") {
            let (size, most) = (least.parse()?, most.parse()?);
            if size > most {
                return Err(ParseError(format!(
                    "{text:?} is a range that ends before it begins"
                )));
            }
            let operator = Operator::UpTo(most);
            return Ok(Comparison { operator, size });
        }
        let found = Operator::TABLE
            .iter()
            .find_map(|(sign, op)| Some((*op, text.strip_prefix(sign)?)));
        let (operator, rest) = found.unwrap_or((Operator::Equal, text));
        Ok(Comparison {
            operator,
            size: rest.parse()?,
        })
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Operator::UpTo(most) = self.operator {
            return write!(f, "{}..{}", self.size.0, most.0);
        }
        let sign = Operator::TABLE
            .iter()
            .find(|(_, op)| *op == self.operator)
            .map_or("=", |(sign, _)| sign);
        write!(f, "{sign}{}", self.size.0)
    }
}

json_string!(
    Comparison,
    "^(>=|<=|>|<|=)?[0-9]+ ?([KMGT]i?B?|[kMGT]B|B)?$|^[0-9]+ ?([KMGT]i?B?|[kMGT]B|B)?\\.\\.[0-9]+ ?([KMGT]i?B?|[kMGT]B|B)?$",
    "a size with a comparison: >=200GiB, <2TB, =500GB; or a range: 200GiB..2TB"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_read_their_operator() {
        let at_least: Comparison = ">=200GiB".parse().unwrap();
        assert!(at_least.allows(Bytes(200 << 30)) && !at_least.allows(Bytes((200 << 30) - 1)));
        let less: Comparison = "<2TB".parse().unwrap();
        assert!(less.allows(Bytes(1)) && !less.allows(Bytes(2_000_000_000_000)));
        let equal: Comparison = "4096".parse().unwrap();
        assert!(equal.allows(Bytes(4096)) && !equal.allows(Bytes(4097)));
        let range: Comparison = "1KiB..2KiB".parse().unwrap();
        let allowed = [1023, 1024, 2048, 2049].map(|n| range.allows(Bytes(n)));
        assert_eq!(allowed, [false, true, true, false]);
        assert_eq!(range.to_string().parse::<Comparison>().unwrap(), range);
        for text in [
            ">>1",
            "=>1",
            "",
            "about 3GB",
            "2..1",
            "..2",
            "1..",
            ">=1..2",
        ] {
            assert!(text.parse::<Comparison>().is_err(), "{text}");
        }
        assert_eq!(
            at_least.to_string().parse::<Comparison>().unwrap(),
            at_least
        );
    }

    #[test]
    fn percentages_stay_within_the_whole() {
        assert_eq!("50%".parse::<Amount>().unwrap(), Amount::Percent(50));
        for text in ["0%", "101%", "300%", "%", "-1%"] {
            assert!(text.parse::<Amount>().is_err(), "{text}");
        }
        assert_eq!("Rest".parse::<SizeText>().unwrap(), SizeText::Rest);
    }
}
