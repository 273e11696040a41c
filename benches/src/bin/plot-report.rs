//! Draws the pages of a report of the peer comparison. Needs no GPU.

use std::path::PathBuf;

use anyhow::Context;
use clap::Parser;
use cuattn_bench::page::{self, Quantity};
use cuattn_bench::report::Report;

/// Draws the pages of a report of the peer comparison as SVG.
#[derive(Parser)]
struct Arguments {
    /// The JSON that `compare.py` wrote.
    report: PathBuf,
    /// Folder for the pages; the report's own by default.
    #[arg(long)]
    out: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let shown = arguments.report.display();
    let text = std::fs::read_to_string(&arguments.report).with_context(|| format!("cannot read {shown}"))?;
    let report = Report::parse(&text).with_context(|| shown.to_string())?;
    let folder = match &arguments.out {
        Some(folder) => folder.clone(),
        None => arguments.report.parent().map(PathBuf::from).unwrap_or_default(),
    };
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let stem = arguments.report.file_stem().unwrap_or_default().to_string_lossy();
    type Draw<'a> = &'a dyn Fn(&std::path::Path) -> Result<bool, page::DrawError>;
    let pages: [(&str, Draw<'_>); 3] = [
        ("ratio", &|path| page::draw_prefill(&report, Quantity::Ratio, path)),
        ("rate", &|path| page::draw_prefill(&report, Quantity::Rate, path)),
        ("suites", &|path| page::draw_suites(&report, path)),
    ];
    for (name, draw) in pages {
        let path = folder.join(format!("{stem}-{name}.svg"));
        match draw(&path) {
            Ok(true) => println!("{}", path.display()),
            Ok(false) => println!("no page '{name}': the report has no figures for it"),
            Err(failure) => anyhow::bail!("cannot draw {}: {failure}", path.display()),
        }
    }
    Ok(())
}
