use clap::Parser;
use datafusion::prelude::{ParquetReadOptions, SessionContext};

use super::*;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: TablesArgs,
}

async fn lines(ctx: &SessionContext, sql: &str) -> Vec<String> {
    let batches = ctx.sql(sql).await.unwrap().collect().await.unwrap();
    crate::suite::answer::lines(&batches).unwrap()
}

async fn context(dir: &std::path::Path, scale: &str) -> SessionContext {
    let words = ["test", "--scale", scale, "--dir", dir.to_str().unwrap()];
    generate(&Cli::try_parse_from(words).unwrap().args, &mut std::io::sink()).unwrap();
    let ctx = SessionContext::new();
    for table in names() {
        let path = dir.join(format!("{table}.parquet"));
        ctx.register_parquet(&table, path.to_str().unwrap(), ParquetReadOptions::default()).await.unwrap();
    }
    ctx
}

#[tokio::test]
async fn rows_are_related_across_tables() {
    let dir = tempfile::tempdir().unwrap();
    let ctx = context(dir.path(), "0.02").await;
    for (sql, expected) in [
        ("SELECT count(*), count(DISTINCT id), min(id), max(id) FROM title", "10000,10000,1,10000"),
        ("SELECT count(DISTINCT topic) FROM keyword", "12"),
        ("SELECT count(DISTINCT country), count(DISTINCT gender) FROM person", "16,2"),
        // Every row belongs to a row of the tables that it names.
        (
            "SELECT count(*) = (SELECT count(*) FROM film_cast) FROM film_cast AS f, title AS t, person AS p, role AS r \
             WHERE f.film_id = t.id AND f.person_id = p.id AND f.role_id = r.id",
            "true",
        ),
        (
            "SELECT count(*) = (SELECT count(*) FROM film_company) FROM film_company AS f, title AS t, company AS c, company_type AS y \
             WHERE f.film_id = t.id AND f.company_id = c.id AND f.company_type_id = y.id",
            "true",
        ),
        (
            "SELECT count(*) = (SELECT count(*) FROM film_keyword) FROM film_keyword AS f, title AS t, keyword AS k \
             WHERE f.film_id = t.id AND f.keyword_id = k.id",
            "true",
        ),
        // The countries of companies and persons of a film agree far more often than by chance, and so do genres.
        (
            "SELECT avg(CAST(c.country = i.info AS INT)) BETWEEN 0.75 AND 0.9 FROM film_company AS f, company AS c, film_info AS i \
             WHERE f.company_id = c.id AND f.film_id = i.film_id AND i.info_type_id = 2",
            "true",
        ),
        (
            "SELECT avg(CAST(k.topic = i.info AS INT)) BETWEEN 0.7 AND 0.9 FROM film_keyword AS f, keyword AS k, film_info AS i \
             WHERE f.keyword_id = k.id AND f.film_id = i.film_id AND i.info_type_id = 1",
            "true",
        ),
        // Who has a large cast has many keywords.
        (
            "SELECT corr(casts, keywords) > 0.7 FROM (SELECT film_id, count(*) AS casts FROM film_cast GROUP BY film_id) AS a \
             JOIN (SELECT film_id, count(*) AS keywords FROM film_keyword GROUP BY film_id) AS b USING (film_id)",
            "true",
        ),
        ("SELECT max(n) > 8 * avg(n) FROM (SELECT count(*) AS n FROM film_cast GROUP BY film_id)", "true"),
    ] {
        assert_eq!(lines(&ctx, sql).await, [expected], "{sql}");
    }
    // The parts of a table do not depend on how many there are.
    let rows = |parts: usize| -> usize {
        let of_part = |part| <Table as tables::Table>::batches(Table::FilmCast, 0.002, part, parts);
        (1..=parts).flat_map(of_part).map(|batch| batch.unwrap().num_rows()).sum()
    };
    assert_eq!(rows(1), rows(7));
}

#[tokio::test]
async fn queries_are_of_all_sizes_and_have_rows() {
    let dir = tempfile::tempdir().unwrap();
    let ctx = context(dir.path(), "0.02").await;
    let queries = queries();
    assert_eq!(queries.len(), 100);
    let joins = |query: &String| query.matches(" JOIN ").count();
    for count in 4..=12 {
        assert!(queries.iter().any(|query| joins(query) == count), "none has {count} joins");
    }
    assert!(queries.iter().all(|query| (4..=12).contains(&joins(query))));
    let mut with_rows = 0;
    for query in queries.iter().step_by(4) {
        let found = lines(&ctx, query).await;
        with_rows += usize::from(!found[0].starts_with("0,"));
    }
    assert!(with_rows > 8, "{with_rows} of 25 have rows");
}
