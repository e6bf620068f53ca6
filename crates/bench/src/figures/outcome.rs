//! The outcome of an experiment.

use std::fmt::{Display, Formatter};

use overspill_experiments::{Figure, SeriesSource};
use serde_json::{Value, json};

#[derive(Debug)]
pub(super) enum Outcome {
    /// Figures. The first is the paper's; its notes say what was left out. There are none on a rank that leaves them to another.
    Done(Vec<Figure>),
    /// The experiment cannot be measured here, for this reason.
    Refused(String),
    /// The experiment started and failed, for this reason.
    Failed(String),
}

impl Outcome {
    /// The outcome with a figure, which is refused if it has no measured lines. The figure's last note is then the reason;
    /// earlier notes are about the paper.
    pub(super) fn of(figure: Figure) -> Self {
        if figure.series.iter().any(|series| series.source == SeriesSource::Measured) {
            return Self::Done(vec![figure]);
        }
        Self::Refused(figure.notes.into_iter().next_back().unwrap_or_else(|| "nothing was measured".to_owned()))
    }

    /// Adds the figures of another part of the same experiment, or a note why that part has none.
    pub(super) fn beside(mut self, part: &str, other: Self) -> Self {
        match (&mut self, other) {
            (Self::Done(figures), Self::Done(others)) => figures.extend(others),
            (Self::Done(figures), Self::Refused(reason) | Self::Failed(reason)) => {
                if let Some(first) = figures.first_mut() {
                    first.notes.push(format!("{part}: refused, {reason}"));
                }
            }
            // Show what was measured, and add a note about what was not.
            (Self::Refused(reason) | Self::Failed(reason), Self::Done(mut others)) => {
                if let Some(first) = others.first_mut() {
                    first.notes.push(format!("the other part: refused, {reason}"));
                }
                self = Self::Done(others);
            }
            (Self::Refused(_) | Self::Failed(_), _) => {}
        }
        self
    }

    /// Whether another rank of an MPI job has the figures.
    pub(super) fn is_silent(&self) -> bool {
        matches!(self, Self::Done(figures) if figures.is_empty())
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Done(_) => "done",
            Self::Refused(_) => "refused",
            Self::Failed(_) => "failed",
        }
    }

    pub(super) fn figures(&self) -> &[Figure] {
        match self {
            Self::Done(figures) => figures,
            Self::Refused(_) | Self::Failed(_) => &[],
        }
    }

    pub(super) fn json(&self, experiment: &str) -> Result<Value, serde_json::Error> {
        let figures = self.figures().iter().map(serde_json::to_value).collect::<Result<Vec<_>, _>>()?;
        let reason = match self {
            Self::Done(_) => None,
            Self::Refused(reason) | Self::Failed(reason) => Some(reason),
        };
        Ok(json!({ "experiment": experiment, "outcome": self.name(), "reason": reason, "figures": figures }))
    }
}

impl Display for Outcome {
    /// One line.
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Done(figures) => {
                let lines: Vec<_> = figures.iter().flat_map(|figure| &figure.series).collect();
                let measured = lines.iter().filter(|line| line.source == SeriesSource::Measured);
                let points: usize = measured.clone().map(|line| line.points.len()).sum();
                write!(f, "done: {} lines, {points} points", measured.count())?;
                let refused = figures.iter().flat_map(|figure| &figure.notes).filter(|note| note.contains("refused"));
                match refused.count() {
                    0 => Ok(()),
                    count => write!(f, "; {count} refused, see its notes"),
                }
            }
            Self::Refused(reason) => write!(f, "refused: {reason}"),
            Self::Failed(reason) => write!(f, "failed: {reason}"),
        }
    }
}
