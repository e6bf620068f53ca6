//! What queries took.

use std::collections::HashMap;

use overspill_schedule::Place;

use super::Prediction;

/// The most shapes of plans that are remembered.
const MOST: usize = 4096;

/// How much the last run of a shape counts beside those before it.
const LAST: f64 = 0.5;

/// By how much the times of plans of the same shape differed from what their operators predict.
#[derive(Debug, Default)]
pub(in crate::scheduler) struct History {
    /// By the shape and the place.
    shapes: HashMap<(u64, Place), Runs>,
    /// The number of runs of all shapes.
    runs: u64,
}

/// The runs of a shape at a place.
#[derive(Debug, Clone, Copy)]
struct Runs {
    /// The logarithm of the time as a multiple of the prediction: an average, in which later runs count more.
    error: f64,
    /// The number of the last run.
    last: u64,
}

impl History {
    /// A query with this uncorrected prediction took `seconds` at a place, or would have, had it been alone.
    pub fn add(&mut self, prediction: &Prediction, place: Place, seconds: f64) {
        let predicted = if place == Place::Cpu { Some(prediction.cpu) } else { prediction.gpu };
        let error = predicted.map_or(f64::NAN, |predicted| (seconds / predicted).ln());
        if !error.is_finite() {
            return;
        }
        self.runs += 1;
        let last = self.runs;
        let runs = self.shapes.entry((prediction.shape, place)).or_insert(Runs { error, last });
        *runs = Runs { error: runs.error + LAST * (error - runs.error), last };
        if self.shapes.len() > MOST {
            self.forget();
        }
    }

    /// The prediction, corrected by what was learned of its shape.
    pub fn corrected(&self, prediction: &Prediction) -> Prediction {
        let of = |place| self.shapes.get(&(prediction.shape, place)).map(|runs| runs.error.exp());
        // One place tells of the other, as rows are misjudged for both.
        let (cpu, gpu) = (of(Place::Cpu), of(Place::Gpu));
        Prediction {
            cpu: prediction.cpu * cpu.or(gpu).unwrap_or(1.0),
            gpu: prediction.gpu.map(|seconds| seconds * gpu.or(cpu).unwrap_or(1.0)),
            ..*prediction
        }
    }

    /// Forgets the half that has not run for longest.
    fn forget(&mut self) {
        let mut last: Vec<u64> = self.shapes.values().map(|runs| runs.last).collect();
        last.sort_unstable();
        let middle = last[last.len() / 2];
        self.shapes.retain(|_, runs| runs.last >= middle);
    }
}

#[cfg(test)]
mod tests {
    use overspill_schedule::Class;

    use super::*;

    fn prediction(shape: u64) -> Prediction {
        Prediction { cpu: 2.0, gpu: Some(1.0), gpu_memory: 0, class: Class::Join, shape }
    }

    #[test]
    fn runs_correct_predictions_of_their_shape() {
        let mut history = History::default();
        for _ in 0..3 {
            history.add(&prediction(1), Place::Cpu, 6.0);
        }
        let corrected = history.corrected(&prediction(1));
        assert!((corrected.cpu - 6.0).abs() < 1e-9 && (corrected.gpu.unwrap() - 3.0).abs() < 1e-9, "{corrected:?}");
        history.add(&prediction(1), Place::Gpu, 1.5);
        assert!((history.corrected(&prediction(1)).gpu.unwrap() - 1.5).abs() < 1e-9);
        assert_eq!(history.corrected(&prediction(2)), prediction(2));
        // The load changes.
        for _ in 0..3 {
            history.add(&prediction(1), Place::Cpu, 2.0);
        }
        assert!((2.0..2.5).contains(&history.corrected(&prediction(1)).cpu));
    }

    #[test]
    fn odd_times_teach_nothing() {
        let mut history = History::default();
        for seconds in [0.0, f64::NAN, f64::INFINITY, -1.0] {
            history.add(&prediction(1), Place::Cpu, seconds);
        }
        history.add(&Prediction { cpu: 0.0, ..prediction(1) }, Place::Cpu, 1.0);
        history.add(&Prediction { gpu: None, ..prediction(1) }, Place::Gpu, 1.0);
        assert_eq!(history.corrected(&prediction(1)), prediction(1));
    }

    #[test]
    fn memory_is_bounded_and_the_last_shapes_are_kept() {
        let mut history = History::default();
        for shape in 0..3 * MOST as u64 {
            history.add(&prediction(shape), Place::Cpu, 4.0);
        }
        assert!(history.shapes.len() <= MOST);
        assert!((history.corrected(&prediction(3 * MOST as u64 - 1)).cpu - 4.0).abs() < 1e-9);
    }
}
