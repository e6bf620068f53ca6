//! Queries over the tables, drawn from a seed.

use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use super::world::{COMPANY_TYPES, COUNTRIES, GENDERS, GENRES, KINDS, ROLES, YEARS};

/// The number of queries.
const QUERIES: u64 = 100;

/// The fewest and the most joins of a query.
const JOINS: [usize; 2] = [4, 12];

/// A table of a query.
struct Joined {
    /// Its name, and its alias.
    table: &'static str,
    alias: &'static str,
    /// The alias of a table that it is joined to.
    to: &'static str,
    /// The equality with that table.
    on: &'static str,
    /// Tables that come with it.
    with: &'static [&'static str],
}

const fn joined(
    (table, alias): (&'static str, &'static str),
    (to, on): (&'static str, &'static str),
    with: &'static [&'static str],
) -> Joined {
    Joined { table, alias, to, on, with }
}

/// The tables that `title` can be joined with. Those with many rows a film come with one whose filter leaves few.
const TABLES: [Joined; 13] = [
    joined(("kind", "kd"), ("t", "kd.id = t.kind_id"), &[]),
    joined(("film_company", "fc"), ("t", "fc.film_id = t.id"), &["c"]),
    joined(("company", "c"), ("fc", "c.id = fc.company_id"), &[]),
    joined(("company_type", "ct"), ("fc", "ct.id = fc.company_type_id"), &[]),
    joined(("film_keyword", "fk"), ("t", "fk.film_id = t.id"), &["k"]),
    joined(("keyword", "k"), ("fk", "k.id = fk.keyword_id"), &[]),
    joined(("film_info", "fi"), ("t", "fi.film_id = t.id"), &["it"]),
    joined(("info_type", "it"), ("fi", "it.id = fi.info_type_id"), &[]),
    joined(("film_info", "fi2"), ("t", "fi2.film_id = t.id"), &["it2"]),
    joined(("info_type", "it2"), ("fi2", "it2.id = fi2.info_type_id"), &[]),
    joined(("film_cast", "fa"), ("t", "fa.film_id = t.id"), &[]),
    joined(("person", "p"), ("fa", "p.id = fa.person_id"), &[]),
    joined(("role", "r"), ("fa", "r.id = fa.role_id"), &[]),
];

fn table(alias: &str) -> Option<&'static Joined> {
    TABLES.iter().find(|joined| joined.alias == alias)
}

/// What the filters of a query are about: mostly columns that agree.
struct Theme {
    genre: usize,
    country: usize,
}

impl Theme {
    fn of(random: &mut ChaCha8Rng) -> Self {
        Self { genre: random.random_range(0..GENRES.len()), country: random.random_range(0..COUNTRIES.len()) }
    }

    /// Itself, or now and then another one.
    fn or_other(&self, random: &mut ChaCha8Rng) -> Self {
        if random.random_bool(0.85) { Self { ..*self } } else { Self::of(random) }
    }
}

/// The filters on a table of a query.
fn filters(alias: &str, theme: &Theme, random: &mut ChaCha8Rng) -> Vec<String> {
    let Theme { genre, country } = theme.or_other(random);
    let (genre, country) = (GENRES[genre], COUNTRIES[country]);
    let one_of = |names: &[&str], random: &mut ChaCha8Rng| names.choose(random).copied().unwrap_or_default().to_owned();
    let filter = match alias {
        "t" if random.random_bool(0.6) => {
            let first = random.random_range(YEARS[0] + 60..YEARS[1]);
            format!("t.year BETWEEN {first} AND {}", first + random.random_range(0..20))
        }
        "kd" => format!("kd.name = '{}'", one_of(&KINDS, random)),
        "c" => format!("c.country = '{country}'"),
        "ct" => format!("ct.name = '{}'", one_of(&COMPANY_TYPES, random)),
        "k" if random.random_bool(0.5) => format!("k.topic = '{genre}'"),
        "k" => format!("k.keyword LIKE '{genre} %{}'", random.random_range(0..10)),
        "it" => "it.name = 'genre'".to_owned(),
        "fi" => format!("fi.info = '{genre}'"),
        "it2" => "it2.name = 'country'".to_owned(),
        "fi2" => format!("fi2.info = '{country}'"),
        "fa" => format!("fa.position <= {}", random.random_range(1..6)),
        "p" if random.random_bool(0.7) => format!("p.country = '{country}'"),
        "p" => format!("p.gender = '{}'", one_of(&GENDERS, random)),
        "r" => format!("r.name = '{}'", one_of(&ROLES, random)),
        _ => return vec![],
    };
    vec![filter]
}

/// The column whose least value a query returns for a table.
fn shown(alias: &str) -> Option<&'static str> {
    Some(match alias {
        "t" => "t.name",
        "c" => "c.name",
        "k" => "k.keyword",
        "p" => "p.name",
        _ => return None,
    })
}

/// The tables of a query in an order in which each is joined to one before it.
fn tables(random: &mut ChaCha8Rng) -> Vec<&'static Joined> {
    let joins = random.random_range(JOINS[0]..=JOINS[1]);
    let mut chosen: Vec<&'static Joined> = vec![];
    while chosen.len() < joins {
        let is_there = |alias: &str| alias == "t" || chosen.iter().any(|joined| joined.alias == alias);
        let room = joins - chosen.len();
        let fits = |joined: &&Joined| !is_there(joined.alias) && is_there(joined.to) && joined.with.len() < room;
        let next: Vec<&'static Joined> = TABLES.iter().filter(fits).collect();
        let Some(next) = next.choose(random) else { break };
        chosen.push(next);
        chosen.extend(next.with.iter().filter_map(|alias| table(alias)));
    }
    // As it may be written.
    let mut written: Vec<&'static Joined> = vec![];
    while written.len() < chosen.len() {
        let is_there = |alias: &str| alias == "t" || written.iter().any(|joined| joined.alias == alias);
        let can_follow = |joined: &&&Joined| !is_there(joined.alias) && is_there(joined.to);
        let next: Vec<_> = chosen.iter().filter(can_follow).collect();
        let Some(next) = next.choose(random) else { break };
        written.push(next);
    }
    written
}

fn query(random: &mut ChaCha8Rng) -> String {
    let (theme, tables) = (Theme::of(random), tables(random));
    let aliases: Vec<&str> = std::iter::once("t").chain(tables.iter().map(|joined| joined.alias)).collect();
    let shown: Vec<String> =
        aliases.iter().filter_map(|alias| shown(alias)).map(|column| format!("min({column})")).collect();
    let joins: Vec<String> =
        tables.iter().map(|joined| format!("JOIN {} AS {} ON {}", joined.table, joined.alias, joined.on)).collect();
    let filters: Vec<String> = aliases.iter().flat_map(|alias| filters(alias, &theme, random)).collect();
    format!("SELECT count(*), {} FROM title AS t {} WHERE {}", shown.join(", "), joins.join(" "), filters.join(" AND "))
}

/// The texts of all queries.
pub(crate) fn queries() -> Vec<String> {
    (1..=QUERIES).map(|number| query(&mut ChaCha8Rng::seed_from_u64(number))).collect()
}
