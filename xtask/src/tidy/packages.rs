//! Rules about packages: which may depend on which, and what each must say of itself.

use std::path::Path;

use anyhow::Context as _;
use cargo_metadata::{DependencyKind, Metadata, TargetKind};

/// What each library crate may depend on within the workspace: the layers of docs/ARCHITECTURE.md. Tests, benches and xtask stand
/// above all layers and may use everything.
const LAYERS: &[(&str, &[&str])] = &[
    ("curt", &[]),
    ("curt-blaslt", &["curt"]),
    ("cuattn-kernels", &[]),
    // Core writes problems into the structs that kernels take: one lowering for all engines.
    ("cuattn-core", &["curt", "cuattn-kernels"]),
    ("cuattn-phase2a", &["curt", "curt-blaslt", "cuattn-core", "cuattn-kernels"]),
    ("cuattn-flash", &["curt", "cuattn-core", "cuattn-kernels"]),
    ("cuattn-varlen", &["curt", "cuattn-core", "cuattn-kernels"]),
    ("cuattn", &["curt", "cuattn-core", "cuattn-phase2a", "cuattn-flash", "cuattn-varlen"]),
    // Operators move and pack tensors around attention: kernels too, though not of attention.
    ("cuattn-ep", &["cuattn-kernels", "cuattn"]),
    ("cuattn-ort", &["cuattn-ep"]),
];

/// Members that are no library for others.
const ABOVE_ALL_LAYERS: &[&str] = &["cuattn-tests", "cuattn-benches", "xtask"];

/// Dependencies that only the named crates may have, and why.
const RESERVED: &[(&str, &[&str], &str)] = &[
    ("libloading", &["curt"], "only curt loads shared libraries"),
    ("cudarc", &["curt", "curt-blaslt", "cuattn-tests"], "the CUDA bindings stay below the runtime"),
];

/// Tools that a library crate may use in tests, benches and examples only.
const TOOLS: &[&str] = &[
    "anyhow",
    "cargo_metadata",
    "clap",
    "comfy-table",
    "criterion",
    "indicatif",
    "plotters",
    "safetensors",
    "serde_json",
    "tracing-subscriber",
];

/// A member of the workspace, as far as rules look at it.
#[derive(Clone, Debug, Default)]
pub(super) struct Package {
    name: String,
    dependencies: Vec<Dependency>,
    has_build_script: bool,
    published: bool,
    license: Option<String>,
    description: Option<String>,
    repository: Option<String>,
    rust_version: Option<String>,
    docs_rs: bool,
    inherits_lints: bool,
    /// The first file of its library, or of its binary.
    root_text: String,
    members: Vec<String>,
}

#[derive(Clone, Debug)]
struct Dependency {
    name: String,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Normal,
    Development,
    Build,
}

/// Reads the members of the workspace.
pub(super) fn read(metadata: &Metadata, root: &Path) -> anyhow::Result<Vec<Package>> {
    let members: Vec<_> = metadata.workspace_packages().iter().map(|package| package.name.to_string()).collect();
    let mut packages = Vec::new();
    for package in metadata.workspace_packages() {
        let manifest = std::fs::read_to_string(&package.manifest_path)
            .with_context(|| format!("cannot read {}", package.manifest_path))?;
        let target = package
            .targets
            .iter()
            .find(|target| target.is_kind(TargetKind::Lib) || target.is_kind(TargetKind::RLib))
            .or_else(|| package.targets.iter().find(|target| target.is_kind(TargetKind::Bin)));
        packages.push(Package {
            name: package.name.to_string(),
            dependencies: package
                .dependencies
                .iter()
                .map(|dependency| Dependency {
                    name: dependency.name.clone(),
                    kind: match dependency.kind {
                        DependencyKind::Development => Kind::Development,
                        DependencyKind::Build => Kind::Build,
                        _ => Kind::Normal,
                    },
                })
                .collect(),
            has_build_script: package.targets.iter().any(|target| target.is_kind(TargetKind::CustomBuild)),
            published: package.publish.is_none(),
            license: package.license.clone(),
            description: package.description.clone(),
            repository: package.repository.clone(),
            rust_version: package.rust_version.as_ref().map(ToString::to_string),
            docs_rs: package.metadata.pointer("/docs/rs").is_some(),
            inherits_lints: manifest.contains("[lints]\nworkspace = true"),
            root_text: target
                .and_then(|target| std::fs::read_to_string(root.join(&target.src_path)).ok())
                .unwrap_or_default(),
            members: members.clone(),
        });
    }
    Ok(packages)
}

/// Every rule about one package.
pub(super) const RULES: &[fn(&Package) -> Vec<String>] =
    &[layers, reserved, tools, no_build_script, says_what_it_is, has_a_crate_page];

/// A crate depends only on crates of a lower layer, whatever the kind of dependency.
fn layers(package: &Package) -> Vec<String> {
    let name = package.name.as_str();
    if ABOVE_ALL_LAYERS.contains(&name) {
        return Vec::new();
    }
    let Some((_, allowed)) = LAYERS.iter().find(|(crate_name, _)| *crate_name == name) else {
        return vec![format!("{name}: has no layer (xtask/src/tidy/packages.rs lists them)")];
    };
    package
        .dependencies
        .iter()
        .filter(|dependency| package.members.contains(&dependency.name) && dependency.name != name)
        .filter(|dependency| !allowed.contains(&dependency.name.as_str()))
        .map(|dependency| format!("{name}: depends on {}, which is not in a layer below it", dependency.name))
        .collect()
}

fn reserved(package: &Package) -> Vec<String> {
    let mut faults = Vec::new();
    for dependency in &package.dependencies {
        for (name, allowed, why) in RESERVED {
            if dependency.name == *name && !allowed.contains(&package.name.as_str()) {
                faults.push(format!("{}: depends on {name}, and {why}", package.name));
            }
        }
    }
    faults
}

/// What a library depends on, all its users build.
fn tools(package: &Package) -> Vec<String> {
    if !LAYERS.iter().any(|(name, _)| *name == package.name) {
        return Vec::new();
    }
    package
        .dependencies
        .iter()
        .filter(|dependency| dependency.kind == Kind::Normal && TOOLS.contains(&dependency.name.as_str()))
        .map(|dependency| format!("{}: {} is for tests and examples: a dev-dependency", package.name, dependency.name))
        .collect()
}

fn no_build_script(package: &Package) -> Vec<String> {
    let build = package.dependencies.iter().any(|dependency| dependency.kind == Kind::Build);
    if package.has_build_script || build {
        vec![format!("{}: has a build script or build dependencies; the product builds without any", package.name)]
    } else {
        Vec::new()
    }
}

fn says_what_it_is(package: &Package) -> Vec<String> {
    let name = &package.name;
    let mut faults = Vec::new();
    let mut must = |holds: bool, what: &str| {
        if !holds {
            faults.push(format!("{name}: {what}"));
        }
    };
    must(package.license.as_deref() == Some("MIT OR Apache-2.0"), "its licence is not MIT OR Apache-2.0");
    must(package.description.as_deref().is_some_and(|text| text.len() > 20), "has no description");
    must(package.rust_version.is_some(), "states no rust-version");
    must(package.inherits_lints, "does not inherit the workspace's lints");
    if LAYERS.iter().any(|(layer, _)| layer == name) {
        must(package.published, "is a library crate and must not say `publish = false`");
        must(package.docs_rs, "has no [package.metadata.docs.rs]");
        must(package.repository.is_some(), "names no repository");
    } else {
        must(!package.published, "must say `publish = false`");
    }
    faults
}

/// The page says what the crate is and why, not only its name.
fn has_a_crate_page(package: &Package) -> Vec<String> {
    let lines = package.root_text.lines().take_while(|line| line.starts_with("//!") || line.trim().is_empty());
    let words: usize = lines.map(|line| line.trim_start_matches("//!").split_whitespace().count()).sum();
    if words < 25 {
        vec![format!("{}: its crate page has {words} words; say what the crate is for", package.name)]
    } else {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "//! One two three four five six seven eight nine ten eleven twelve thirteen fourteen.\n//!\n\
        //! Fifteen sixteen seventeen eighteen nineteen twenty twenty-one twenty-two twenty-three twenty-four twenty-five.\n";

    fn package(name: &str, dependencies: &[(&str, Kind)]) -> Package {
        Package {
            name: name.into(),
            dependencies: dependencies.iter().map(|&(name, kind)| Dependency { name: name.into(), kind }).collect(),
            published: true,
            license: Some("MIT OR Apache-2.0".into()),
            description: Some("A description that says something.".into()),
            repository: Some("https://example.com".into()),
            rust_version: Some("1.89".into()),
            docs_rs: true,
            inherits_lints: true,
            root_text: PAGE.into(),
            members: LAYERS.iter().map(|(name, _)| (*name).to_owned()).collect(),
            ..Package::default()
        }
    }

    fn faults(package: &Package) -> Vec<String> {
        RULES.iter().flat_map(|rule| rule(package)).collect()
    }

    #[test]
    fn an_orderly_crate_has_no_faults() {
        let orderly = package("cuattn-core", &[("curt", Kind::Normal), ("anyhow", Kind::Development)]);
        assert_eq!(faults(&orderly), Vec::<String>::new());
    }

    #[test]
    fn dependencies_up_and_sideways_are_faults() {
        let sideways = package("cuattn-flash", &[("cuattn-phase2a", Kind::Normal)]);
        assert_eq!(faults(&sideways), ["cuattn-flash: depends on cuattn-phase2a, which is not in a layer below it"]);
        let up = package("curt", &[("cuattn-core", Kind::Development)]);
        assert_eq!(faults(&up), ["curt: depends on cuattn-core, which is not in a layer below it"]);
        assert!(faults(&package("cuattn-new", &[]))[0].contains("has no layer"));
    }

    #[test]
    fn the_layers_themselves_are_layers() {
        // A crate may only depend on crates that are listed before it.
        for (index, (name, allowed)) in LAYERS.iter().enumerate() {
            let below: Vec<_> = LAYERS[..index].iter().map(|(name, _)| name).collect();
            assert!(allowed.iter().all(|dependency| below.contains(&dependency)), "{name}");
        }
    }

    #[test]
    fn reserved_dependencies_are_faults_elsewhere() {
        assert!(faults(&package("curt", &[("libloading", Kind::Normal), ("cudarc", Kind::Normal)])).is_empty());
        assert_eq!(
            faults(&package("cuattn-flash", &[("libloading", Kind::Development)])),
            ["cuattn-flash: depends on libloading, and only curt loads shared libraries"]
        );
        assert_eq!(faults(&package("cuattn-core", &[("cudarc", Kind::Normal)])).len(), 1);
    }

    #[test]
    fn tools_are_for_tests() {
        assert_eq!(
            faults(&package("cuattn", &[("clap", Kind::Normal)])),
            ["cuattn: clap is for tests and examples: a dev-dependency"]
        );
    }

    #[test]
    fn build_scripts_are_faults() {
        let scripted = Package { has_build_script: true, ..package("curt", &[]) };
        assert_eq!(faults(&scripted).len(), 1);
        assert_eq!(faults(&package("curt", &[("cc", Kind::Build)])).len(), 1);
    }

    #[test]
    fn a_crate_says_what_it_is() {
        let orderly = package("curt", &[]);
        for (what, broken) in [
            ("licence", Package { license: Some("GPL-3.0".into()), ..orderly.clone() }),
            ("description", Package { description: None, ..orderly.clone() }),
            ("rust-version", Package { rust_version: None, ..orderly.clone() }),
            ("lints", Package { inherits_lints: false, ..orderly.clone() }),
            ("docs.rs", Package { docs_rs: false, ..orderly.clone() }),
            ("repository", Package { repository: None, ..orderly.clone() }),
            ("publish", Package { published: false, ..orderly.clone() }),
            ("crate page", Package { root_text: "//! A crate.\n".into(), ..orderly.clone() }),
            ("publish", package("xtask", &[])),
        ] {
            let faults = faults(&broken);
            assert_eq!(faults.len(), 1, "{faults:?}");
            assert!(faults[0].contains(what), "{faults:?}");
        }
    }
}
