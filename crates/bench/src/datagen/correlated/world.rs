//! Films with a genre, a country and a rank. No column of `title` shows these three, but the rows of a film in other tables are drawn by them.

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use super::super::keys::Permutation;
use super::super::scaled;

pub(super) const GENRES: [&str; 12] = [
    "drama",
    "comedy",
    "documentary",
    "thriller",
    "romance",
    "action",
    "horror",
    "crime",
    "family",
    "fantasy",
    "western",
    "musical",
];
pub(super) const COUNTRIES: [&str; 16] =
    ["us", "gb", "in", "fr", "jp", "de", "it", "es", "ca", "kr", "br", "se", "mx", "dk", "pl", "nz"];
pub(super) const KINDS: [&str; 6] = ["film", "episode", "short", "video", "series", "game"];
pub(super) const COMPANY_TYPES: [&str; 4] = ["production", "distribution", "effects", "sound"];
/// The first two are those of persons of the first and of the second gender.
pub(super) const ROLES: [&str; 10] =
    ["actor", "actress", "producer", "writer", "director", "editor", "composer", "camera", "design", "guest"];
pub(super) const INFO_TYPES: [&str; 20] = [
    "genre",
    "country",
    "language",
    "rating",
    "votes",
    "runtime",
    "color",
    "sound",
    "budget",
    "gross",
    "release",
    "certificate",
    "location",
    "format",
    "quote",
    "trivia",
    "mistake",
    "tagline",
    "camera",
    "laboratory",
];
pub(super) const GENDERS: [&str; 2] = ["m", "f"];

/// The first and the last year of a film.
pub(super) const YEARS: [i32; 2] = [1900, 2024];

const FILMS: u64 = 500_000;
const PERSONS: u64 = 800_000;
const COMPANIES: u64 = 50_000;
const KEYWORDS: u64 = 20_000;

/// The seed of all tables.
const SEED: u64 = 20;

/// How fast the numbers of rows of films fall with their rank.
const FALL: f64 = 0.35;

/// The tables whose rows belong to films, by a number that their random numbers begin with.
#[derive(Debug, Clone, Copy)]
pub(super) enum Link {
    Film,
    Company,
    Cast,
    Keyword,
    Info,
}

/// A film.
pub(super) struct Film {
    pub(super) id: u64,
    pub(super) genre: usize,
    pub(super) country: usize,
    pub(super) kind: usize,
    pub(super) year: i32,
    /// The number of films before it, by how many rows of other tables they have.
    pub(super) rank: u64,
}

/// The numbers of rows, and the films.
#[derive(Debug, Clone)]
pub(super) struct World {
    pub(super) films: u64,
    pub(super) persons: u64,
    pub(super) companies: u64,
    pub(super) keywords: u64,
    ranks: Permutation,
}

/// A number below `count`, drawn at random. Small numbers are drawn more often than large ones.
fn skewed(count: usize, random: &mut ChaCha8Rng) -> usize {
    let place: f64 = random.random();
    ((place * place * count as f64) as usize).min(count - 1)
}

/// The numbers below `rows` that belong to one of `count` kinds, as many as [`skewed`] gives it: kinds lie one after the other.
fn block(rows: u64, kind: usize, count: usize) -> std::ops::Range<u64> {
    let end = |kind: usize| ((kind as f64 / count as f64).sqrt() * rows as f64) as u64;
    end(kind)..if kind + 1 == count { rows } else { end(kind + 1) }
}

/// The kind of a number: that of its [`block`].
pub(super) fn kind_of(rows: u64, number: u64, count: usize) -> usize {
    (0..count).find(|kind| block(rows, *kind, count).contains(&number)).unwrap_or(count - 1)
}

impl World {
    pub(super) fn new(scale: f64) -> Self {
        let films = scaled(FILMS, scale);
        Self {
            films,
            persons: scaled(PERSONS, scale),
            companies: scaled(COMPANIES, scale),
            keywords: scaled(KEYWORDS, scale),
            ranks: Permutation::new(films, &mut ChaCha8Rng::seed_from_u64(SEED)),
        }
    }

    /// The random numbers of a film's rows in a table.
    pub(super) fn random(&self, film: u64, link: Link) -> ChaCha8Rng {
        ChaCha8Rng::seed_from_u64(SEED ^ (film << 8) ^ (link as u64 + 1))
    }

    /// The film with an id, from 1 on.
    pub(super) fn film(&self, id: u64) -> Film {
        let mut random = self.random(id, Link::Film);
        let (genre, country) = (skewed(GENRES.len(), &mut random), skewed(COUNTRIES.len(), &mut random));
        let rank = self.ranks.apply(id - 1);
        // Series and games are young, and of few countries.
        let kind = if country < 4 && random.random_bool(0.3) { 4 } else { skewed(KINDS.len(), &mut random) };
        let [first, last] = YEARS;
        let least = if kind >= 4 { 1980 } else { first };
        // What is known best is young.
        let age = random.random::<f64>().powi(2) * (0.2 + 0.8 * rank as f64 / self.films as f64);
        Film { id, genre, country, kind, year: last - (age * f64::from(last - least)) as i32, rank }
    }

    /// How many rows of a table a film has: `base` and more the better known it is, at most `most`.
    pub(super) fn fan_out(&self, film: &Film, base: f64, most: u32, random: &mut ChaCha8Rng) -> u32 {
        let mean = base * (self.films as f64 / (film.rank + 1) as f64).powf(FALL);
        ((mean * random.random_range(0.5..1.5)) as u32).min(most)
    }

    /// One of `rows` numbers, most of them of the block of a kind, and few of them in many rows.
    pub(super) fn related(&self, rows: u64, (kind, count): (usize, usize), share: f64, random: &mut ChaCha8Rng) -> u64 {
        let block = if random.random_bool(share) { block(rows, kind, count) } else { 0..rows };
        let length = (block.end - block.start).max(1);
        let place = (random.random::<f64>().powi(3) * length as f64) as u64;
        (block.start + place).min(rows - 1)
    }
}

/// The gender of a person.
pub(super) fn gender(person: u64) -> usize {
    usize::from(person % 5 > 2)
}

/// A role of a person.
pub(super) fn role(person: u64, random: &mut ChaCha8Rng) -> usize {
    if random.random_bool(0.6) { gender(person) } else { 2 + skewed(ROLES.len() - 2, random) }
}

/// The text of an info about a film.
pub(super) fn info(film: &Film, info_type: usize, films: u64, random: &mut ChaCha8Rng) -> String {
    match INFO_TYPES[info_type] {
        "genre" => GENRES[film.genre].to_owned(),
        "country" => COUNTRIES[film.country].to_owned(),
        "language" => format!("language of {}", COUNTRIES[if random.random_bool(0.9) { film.country } else { 0 }]),
        "rating" => format!("{} stars", 5 - (film.rank * 5 / films.max(1)).min(4)),
        name => format!("{name} {}", skewed(200, random)),
    }
}
