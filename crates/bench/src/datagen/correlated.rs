//! Twelve tables about films, like those that the Join Order Benchmark asks: how many rows a film has in one table depends on how many it has in the others, and
//! columns of one table on those of another, across joins. Estimates that multiply selectivities are wrong here.
//!
//! Films have a genre, a country and a rank, which no column of `title` shows. Most companies and persons of a film are of its country, most keywords of its genre, and its
//! infos name both. The numbers of rows of films fall with their rank in each table.

mod queries;
mod world;

use std::io::Write;

use arrow::datatypes::SchemaRef;
use clap::ValueEnum;
use datafusion::common::Result;
use rand::Rng;

use super::columns::{Columns, batches, numbers, schema, texts};
use super::tables::{self, Batches, TablesArgs};
use crate::report::value_name;

pub(crate) use queries::queries;
use world::{
    COMPANY_TYPES, COUNTRIES, Film, GENDERS, GENRES, INFO_TYPES, KINDS, Link, ROLES, World, gender, info, kind_of, role,
};

/// A table. The small tables come first, so that output starts soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Table {
    Kind,
    CompanyType,
    Role,
    InfoType,
    Keyword,
    Company,
    Title,
    Person,
    FilmCompany,
    FilmKeyword,
    FilmInfo,
    FilmCast,
}

/// Rows of a film in each table, on average.
const COMPANIES_OF_FILM: u64 = 2;
const KEYWORDS_OF_FILM: u64 = 3;
const INFOS_OF_FILM: u64 = 7;
const CAST_OF_FILM: u64 = 9;

/// A row of a film in another table.
#[derive(Default)]
struct Row {
    film: u64,
    /// The number of the row that is related to the film.
    other: u64,
    /// The number of the type of the relation.
    of_type: usize,
    /// The number of the row among those of the film, from 1 on.
    position: u32,
    text: String,
}

impl tables::Table for Table {
    const BENCHMARK: &str = "correlated";

    fn name(self) -> String {
        value_name(&self)
    }

    fn schema(self) -> SchemaRef {
        let world = World::new(1.0);
        schema(&match self {
            Self::Kind | Self::CompanyType | Self::Role | Self::InfoType => self.names(&[]),
            Self::Keyword => keyword(&[], &world),
            Self::Company => company(&[], &world),
            Self::Person => person(&[], &world),
            Self::Title => title(&[]),
            Self::FilmCompany | Self::FilmKeyword | Self::FilmInfo | Self::FilmCast => self.of_films(&[]),
        })
    }

    /// The number of rows, which is approximate for those of films.
    fn rows(self, scale: f64) -> u64 {
        let world = World::new(scale);
        match self {
            Self::Kind => KINDS.len() as u64,
            Self::CompanyType => COMPANY_TYPES.len() as u64,
            Self::Role => ROLES.len() as u64,
            Self::InfoType => INFO_TYPES.len() as u64,
            Self::Keyword => world.keywords,
            Self::Company => world.companies,
            Self::Person => world.persons,
            Self::Title => world.films,
            Self::FilmCompany => world.films * COMPANIES_OF_FILM,
            Self::FilmKeyword => world.films * KEYWORDS_OF_FILM,
            Self::FilmInfo => world.films * INFOS_OF_FILM,
            Self::FilmCast => world.films * CAST_OF_FILM,
        }
    }

    fn batches(self, scale: f64, part: usize, parts: usize) -> Batches {
        let world = World::new(scale);
        let place = |rows: u64, part: usize| (u128::from(rows) * part as u128 / parts as u128) as u64;
        let numbers_of = |rows: u64| place(rows, part - 1)..place(rows, part);
        let films = numbers_of(world.films).map(|number| number + 1);
        match self {
            Self::Kind | Self::CompanyType | Self::Role | Self::InfoType => {
                batches(numbers_of(self.rows(scale)), move |rows| self.names(rows))
            }
            Self::Keyword => batches(numbers_of(world.keywords), move |rows| keyword(rows, &world)),
            Self::Company => batches(numbers_of(world.companies), move |rows| company(rows, &world)),
            Self::Person => batches(numbers_of(world.persons), move |rows| person(rows, &world)),
            Self::Title => batches(films.map(move |id| world.film(id)), title),
            Self::FilmCompany | Self::FilmKeyword | Self::FilmInfo | Self::FilmCast => {
                let rows = films.flat_map(move |id| self.rows_of(&world.film(id), &world));
                batches(rows, move |rows| self.of_films(rows))
            }
        }
    }
}

/// A key, from 1 on.
fn key(number: u64) -> i32 {
    i32::try_from(number + 1).unwrap_or(i32::MAX)
}

impl Table {
    /// The columns of a table of names.
    fn names(self, rows: &[u64]) -> Columns {
        let names: &[&str] = match self {
            Self::Kind => &KINDS,
            Self::CompanyType => &COMPANY_TYPES,
            Self::Role => &ROLES,
            _ => &INFO_TYPES,
        };
        vec![("id", numbers(rows, |row| key(*row))), ("name", texts(rows, |row| names[*row as usize]))]
    }

    /// The rows of a film in a table.
    fn rows_of(self, film: &Film, world: &World) -> Vec<Row> {
        let (country, genre) = ((film.country, COUNTRIES.len()), (film.genre, GENRES.len()));
        let rows = |link, base, most, row: &mut dyn FnMut(&mut Row, &mut rand_chacha::ChaCha8Rng)| {
            let mut random = world.random(film.id, link);
            let count = world.fan_out(film, base, most, &mut random);
            let rows = (1..=count).map(|position| {
                let mut of_film = Row { film: film.id, position, ..Row::default() };
                row(&mut of_film, &mut random);
                of_film
            });
            rows.collect()
        };
        match self {
            Self::FilmCompany => rows(Link::Company, 1.2, 12, &mut |row, random| {
                row.other = world.related(world.companies, country, 0.8, random);
                row.of_type = random.random_range(0..COMPANY_TYPES.len());
            }),
            Self::FilmKeyword => rows(Link::Keyword, 1.7, 40, &mut |row, random| {
                row.other = world.related(world.keywords, genre, 0.75, random);
            }),
            Self::FilmInfo => rows(Link::Info, 4.6, 40, &mut |row, random| {
                // The first infos are those of the first types; each film has a genre and a country.
                let first = row.position as usize - 1;
                row.of_type = if first < 4 { first } else { random.random_range(4..INFO_TYPES.len()) };
                row.text = info(film, row.of_type, world.films, random);
            }),
            _ => rows(Link::Cast, 6.0, 100, &mut |row, random| {
                row.other = world.related(world.persons, country, 0.7, random);
                row.of_type = role(row.other, random);
            }),
        }
    }

    /// The columns of a table with rows of films.
    fn of_films(self, rows: &[Row]) -> Columns {
        let id = ("film_id", numbers(rows, |row| key(row.film - 1)));
        let other = |name| (name, numbers(rows, |row| key(row.other)));
        let of_type = |name| (name, numbers(rows, |row| key(row.of_type as u64)));
        let position = ("position", numbers(rows, |row| i32::try_from(row.position).unwrap_or(i32::MAX)));
        match self {
            Self::FilmCompany => vec![id, other("company_id"), of_type("company_type_id")],
            Self::FilmKeyword => vec![id, other("keyword_id")],
            Self::FilmInfo => vec![id, of_type("info_type_id"), ("info", texts(rows, |row| row.text.clone()))],
            _ => vec![id, other("person_id"), of_type("role_id"), position],
        }
    }
}

fn keyword(rows: &[u64], world: &World) -> Columns {
    let topic = |row: &u64| GENRES[kind_of(world.keywords, *row, GENRES.len())];
    vec![
        ("id", numbers(rows, |row| key(*row))),
        ("topic", texts(rows, topic)),
        ("keyword", texts(rows, |row| format!("{} {row}", topic(row)))),
    ]
}

fn company(rows: &[u64], world: &World) -> Columns {
    vec![
        ("id", numbers(rows, |row| key(*row))),
        ("country", texts(rows, |row| COUNTRIES[kind_of(world.companies, *row, COUNTRIES.len())])),
        ("name", texts(rows, |row| format!("company {row}"))),
    ]
}

fn person(rows: &[u64], world: &World) -> Columns {
    vec![
        ("id", numbers(rows, |row| key(*row))),
        ("gender", texts(rows, |row| GENDERS[gender(*row)])),
        ("country", texts(rows, |row| COUNTRIES[kind_of(world.persons, *row, COUNTRIES.len())])),
        ("name", texts(rows, |row| format!("person {row}"))),
    ]
}

fn title(rows: &[Film]) -> Columns {
    vec![
        ("id", numbers(rows, |film| key(film.id - 1))),
        ("kind_id", numbers(rows, |film| key(film.kind as u64))),
        ("year", numbers(rows, |film| film.year)),
        ("name", texts(rows, |film| format!("film {}", film.id))),
    ]
}

/// The names of the tables.
pub(crate) fn names() -> impl Iterator<Item = String> {
    Table::value_variants().iter().map(value_name)
}

pub(crate) fn generate(args: &TablesArgs, out: &mut dyn Write) -> Result<()> {
    tables::generate(Table::value_variants(), args, out)
}

#[cfg(test)]
mod tests;
