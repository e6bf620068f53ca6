//! The name that was probably meant.

use datafusion::common::utils::datafusion_strsim::levenshtein;

/// The candidate nearest to a name that is not known, if one is near: the same candidates always give the same answer.
///
/// Near is what takes few letters to add, drop or change. Of equally near ones the first is the one that begins alike
/// for longest, as people rather miss letters at the end; then the shorter, then the first of the alphabet.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name = name.to_lowercase();
    let limit = name.chars().count().div_ceil(3);
    let ranked = candidates.into_iter().filter_map(|candidate| {
        let lower = candidate.to_lowercase();
        let distance = levenshtein(&name, &lower);
        let alike = name.chars().zip(lower.chars()).take_while(|(left, right)| left == right).count();
        let rank = (distance, std::cmp::Reverse(alike), lower.chars().count());
        let longer = name.chars().count().max(lower.chars().count());
        (distance <= limit && distance < longer).then_some((rank, candidate))
    });
    ranked.min().map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FUNCTIONS: [&str; 9] = ["cot", "count", "cos", "corr", "sum", "sin", "upper", "lower", "average"];

    #[test]
    fn the_nearest_name_is_found_whatever_the_order() {
        for (wrong, right) in [
            ("cout", "count"),
            ("COUNTT", "count"),
            ("summ", "sum"),
            ("uper", "upper"),
            ("avrage", "average"),
            ("loewr", "lower"),
        ] {
            assert_eq!(nearest(wrong, FUNCTIONS), Some(right), "{wrong}");
            assert_eq!(nearest(wrong, FUNCTIONS.into_iter().rev()), Some(right), "{wrong}, backwards");
        }
    }

    #[test]
    fn what_is_far_is_not_suggested() {
        for far in ["nothing_alike", "x", "zzz", ""] {
            assert_eq!(nearest(far, FUNCTIONS), None, "{far}");
        }
    }
}
