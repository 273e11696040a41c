//! Options of a session.

use std::path::PathBuf;

use cuattn_ep::cuattn::curt::RuntimeOptions;
use cuattn_ep::cuattn::{EngineId, Policy};

use crate::abi::OrtSessionOptions;
use crate::api::{tables, text};
use crate::failure::{Failure, Result, check};

/// What the session's configuration calls our options: this, a dot, and the option's name.
pub(crate) const PREFIX: &str = "ep.cuattnexecutionprovider.";

/// Options of a session, as given to `add_provider_for_devices`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// `engine`: `auto`, `flash` or `phase2a`.
    pub(crate) policy: Policy,
    /// `cache_dir`: where compiled kernels are kept.
    pub(crate) cache_dir: Option<PathBuf>,
    /// `device_id`: the ordinal, where it must be a certain one.
    pub(crate) device_id: Option<usize>,
    /// `explain`: whether each node that is not claimed is a warning with its reason.
    pub(crate) explain: bool,
}

impl Options {
    /// # Safety
    ///
    /// `session` is live.
    pub(crate) unsafe fn of(session: *const OrtSessionOptions) -> Result<Self> {
        let api = tables()?;
        let mut pairs = std::ptr::null_mut();
        let mut entries = Vec::new();
        // SAFETY: as the caller promises; the arrays are of `count` C strings that live as long as the pairs.
        unsafe {
            check(api.ort.GetSessionOptionsConfigEntries(session, &mut pairs))?;
            let (mut keys, mut values, mut count) = (std::ptr::null(), std::ptr::null(), 0);
            api.ort.GetKeyValuePairs(pairs, &mut keys, &mut values, &mut count);
            for index in 0..count {
                entries.push((text(*keys.add(index)), text(*values.add(index))));
            }
            api.ort.ReleaseKeyValuePairs(pairs);
        }
        Self::parse(entries.iter().map(|(key, value)| (key.as_str(), value.as_str())))
    }

    fn parse<'a>(entries: impl Iterator<Item = (&'a str, &'a str)>) -> Result<Self> {
        let mut options = Self::default();
        for (key, value) in entries {
            let Some(name) = key.strip_prefix(PREFIX) else { continue };
            let wrong = |allowed: &str| Failure::invalid(format!("option `{name}` is `{value}`: it must be {allowed}"));
            match name {
                "engine" => {
                    options.policy = match value {
                        "auto" => Policy::Auto,
                        "flash" => Policy::Only(EngineId::Flash),
                        "phase2a" => Policy::Only(EngineId::Phase2a),
                        _ => return Err(wrong("`auto`, `flash` or `phase2a`")),
                    }
                }
                "cache_dir" => options.cache_dir = Some(value.into()),
                "device_id" => {
                    options.device_id = Some(value.parse().map_err(|_| wrong("the number of a CUDA device"))?);
                }
                "explain" => {
                    options.explain = match value {
                        "0" => false,
                        "1" => true,
                        _ => return Err(wrong("`0` or `1`")),
                    }
                }
                _ => {
                    return Err(Failure::invalid(format!(
                        "there is no option `{name}`: the options are `engine`, `cache_dir`, `device_id` and `explain`"
                    )));
                }
            }
        }
        Ok(options)
    }

    pub(crate) fn runtime(&self) -> RuntimeOptions {
        match &self.cache_dir {
            Some(directory) => RuntimeOptions::new().cache_directory(directory),
            None => RuntimeOptions::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(entries: &[(&str, &str)]) -> Result<Options> {
        let entries: Vec<_> = entries.iter().map(|(name, value)| (format!("{PREFIX}{name}"), *value)).collect();
        Options::parse(entries.iter().map(|(key, value)| (key.as_str(), *value)))
    }

    #[test]
    fn options_are_read_and_those_of_others_left_alone() {
        let options = parse(&[("engine", "phase2a"), ("cache_dir", "/x"), ("device_id", "1"), ("explain", "1")]);
        let want = Options {
            policy: Policy::Only(EngineId::Phase2a),
            cache_dir: Some("/x".into()),
            device_id: Some(1),
            explain: true,
        };
        assert_eq!(options.unwrap(), want);
        assert_eq!(Options::parse([("session.x", "1")].into_iter()).unwrap(), Options::default());
    }

    #[test]
    fn what_is_wrong_is_said() {
        insta::assert_snapshot!(
            parse(&[("engine", "fast")]).unwrap_err(),
            @"option `engine` is `fast`: it must be `auto`, `flash` or `phase2a`"
        );
        insta::assert_snapshot!(
            parse(&[("device_id", "gpu")]).unwrap_err(),
            @"option `device_id` is `gpu`: it must be the number of a CUDA device"
        );
        insta::assert_snapshot!(
            parse(&[("cache", "x")]).unwrap_err(),
            @"there is no option `cache`: the options are `engine`, `cache_dir`, `device_id` and `explain`"
        );
    }
}
