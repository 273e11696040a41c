//! A step of a longer run: it passes, fails, or does not run, and the third is never mistaken for the first.

use std::io::IsTerminal as _;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::table::table;

/// How a step ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It ran, and all is well. The text may add what it covered.
    Passed(String),
    /// It ran, and found something.
    Failed(String),
    /// It could not run, for this reason.
    NotRun(String),
}

impl Outcome {
    /// Passed, with nothing to add.
    pub(crate) fn passed() -> Self {
        Self::Passed(String::new())
    }

    /// Says how a command that is this one step ended, and gives its exit status. What did not run has not succeeded.
    pub(crate) fn told(&self) -> ExitCode {
        let (result, text) = match self {
            Self::Passed(text) => ("passed", text),
            Self::Failed(text) => ("FAILED", text),
            Self::NotRun(text) => ("NOT RUN", text),
        };
        println!("{result}: {text}");
        if matches!(self, Self::Passed(_)) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// A step that ended.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    name: &'static str,
    outcome: Outcome,
    took: Duration,
}

/// The steps of a run so far.
#[derive(Debug, Default)]
pub(crate) struct Steps(Vec<Step>);

impl Steps {
    /// Runs a step under a heading. An error fails the step, not the run: the steps that follow may find more.
    pub(crate) fn run(&mut self, name: &'static str, step: impl FnOnce() -> anyhow::Result<Outcome>) {
        println!("\n== {name}");
        let begun = Instant::now();
        let outcome = step().unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")));
        match &outcome {
            Outcome::Passed(_) => {}
            Outcome::Failed(why) => println!("FAILED: {why}"),
            Outcome::NotRun(why) => println!("not run: {why}"),
        }
        self.0.push(Step { name, outcome, took: begun.elapsed() });
    }

    /// Whether no step failed, and, where `strict`, each one ran.
    pub(crate) fn succeeded(&self, strict: bool) -> bool {
        !self.0.is_empty()
            && self.0.iter().all(|step| match step.outcome {
                Outcome::Passed(_) => true,
                Outcome::Failed(_) => false,
                Outcome::NotRun(_) => !strict,
            })
    }

    /// The table of steps.
    pub(crate) fn table(&self) -> String {
        let mut table = table(&["step", "result", "seconds", ""], 2);
        for Step { name, outcome, took } in &self.0 {
            let (result, text) = match outcome {
                Outcome::Passed(text) => ("passed", text),
                Outcome::Failed(text) => ("FAILED", text),
                Outcome::NotRun(text) => ("NOT RUN", text),
            };
            let first = text.lines().next().unwrap_or_default();
            table.add_row([
                (*name).to_owned(),
                result.to_owned(),
                format!("{:.1}", took.as_secs_f64()),
                first.to_owned(),
            ]);
        }
        table.to_string()
    }

    /// The closing line: `7 passed, 0 failed`, with what did not run, where something did not.
    pub(crate) fn closing_line(&self) -> String {
        let count = |wanted: fn(&Outcome) -> bool| self.0.iter().filter(|step| wanted(&step.outcome)).count();
        let passed = count(|outcome| matches!(outcome, Outcome::Passed(_)));
        let failed = count(|outcome| matches!(outcome, Outcome::Failed(_)));
        let not_run = count(|outcome| matches!(outcome, Outcome::NotRun(_)));
        let not_run = if not_run == 0 { String::new() } else { format!(", {not_run} not run") };
        format!("{passed} passed, {failed} failed{not_run}")
    }
}

/// Runs a command with its output shown, and fails unless it succeeds.
pub(crate) fn succeed(command: &mut Command) -> anyhow::Result<Outcome> {
    let line = command_line(command);
    println!("$ {line}");
    if std::io::stdout().is_terminal() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    let status = command.status().with_context(|| format!("cannot start `{line}`"))?;
    Ok(if status.success() { Outcome::passed() } else { Outcome::Failed(format!("`{line}` ended with {status}")) })
}

/// A command as one would type it.
pub(crate) fn command_line(command: &Command) -> String {
    let program = command.get_program().to_string_lossy().into_owned();
    let program =
        std::path::Path::new(&program).file_name().map_or(program.clone(), |name| name.to_string_lossy().into());
    let args = command.get_args().map(|arg| {
        let arg = arg.to_string_lossy();
        if arg.contains(char::is_whitespace) { format!("'{arg}'") } else { arg.into_owned() }
    });
    std::iter::once(program).chain(args).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(outcomes: Vec<Outcome>) -> Steps {
        Steps(outcomes.into_iter().map(|outcome| Step { name: "step", outcome, took: Duration::ZERO }).collect())
    }

    #[test]
    fn a_step_that_did_not_run_has_not_passed() {
        let steps = steps(vec![Outcome::passed(), Outcome::NotRun("no NVRTC".into())]);
        assert_eq!(steps.closing_line(), "1 passed, 0 failed, 1 not run");
        assert!(steps.table().contains("NOT RUN"));
        assert!(steps.table().contains("no NVRTC"));
        assert!(steps.succeeded(false));
        assert!(!steps.succeeded(true));
    }

    #[test]
    fn one_failure_fails_the_run() {
        let steps = steps(vec![Outcome::passed(), Outcome::Failed("bad".into())]);
        assert_eq!(steps.closing_line(), "1 passed, 1 failed");
        assert!(!steps.succeeded(false));
    }

    #[test]
    fn a_run_of_nothing_does_not_succeed() {
        assert!(!Steps::default().succeeded(false));
    }

    #[test]
    fn an_error_fails_its_step_and_the_next_one_runs() {
        let mut steps = Steps::default();
        steps.run("first", || anyhow::bail!("broken"));
        steps.run("second", || Ok(Outcome::passed()));
        assert_eq!(steps.closing_line(), "1 passed, 1 failed");
        assert!(steps.table().contains("broken"));
    }

    #[cfg(unix)]
    #[test]
    fn a_command_fails_by_its_exit_status_or_by_not_starting() {
        assert_eq!(succeed(&mut Command::new("true")).unwrap(), Outcome::passed());
        assert!(matches!(succeed(&mut Command::new("false")).unwrap(), Outcome::Failed(_)));
        assert!(succeed(&mut Command::new("/no/such/program")).is_err());
    }
}
