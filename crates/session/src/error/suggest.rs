//! Suggests the name that was probably meant.

use datafusion::common::utils::datafusion_strsim::levenshtein;

/// The candidate nearest to an unknown name, if one is near. The result is deterministic.
///
/// Candidates are near if few letters must be added, removed or changed. Among equally near candidates, the one with the
/// longest common prefix wins, as letters are rather missed at the end; then the shorter one, then the alphabetically first.
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

/// The settings with the same last part as an unknown one, or else the nearest.
pub fn nearest_setting(key: &str, known: &[String]) -> Option<String> {
    let last = key.rsplit('.').next().unwrap_or(key);
    let last_parts = || known.iter().filter_map(|known| known.rsplit('.').next());
    let meant = if last_parts().any(|part| part == last) { last } else { nearest(last, last_parts())? };
    let mut alike: Vec<_> = known.iter().filter(|known| known.rsplit('.').next() == Some(meant)).cloned().collect();
    alike.sort();
    Some(alike.join(" or "))
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
