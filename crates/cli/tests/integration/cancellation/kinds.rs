//! The kinds of statement that are interrupted.

/// A statement that takes longer than anybody waits for it.
pub struct Kind {
    pub name: &'static str,
    pub sql: &'static str,
    /// Settings that are made first.
    pub settings: &'static [&'static str],
}

const fn kind(name: &'static str, sql: &'static str) -> Kind {
    Kind { name, sql, settings: &[] }
}

const fn spilling(name: &'static str, sql: &'static str) -> Kind {
    Kind { name, sql, settings: &["SET datafusion.runtime.memory_limit = '32MB'"] }
}

/// Makes the files, views and tables that the statements read. Tables in memory would take from the small limits.
pub const SETUP: [&str; 11] = [
    "COPY (SELECT value AS k, value % 1000 AS g, concat('text of ', value) AS t FROM range(300000)) TO 'rows.parquet'",
    "COPY (SELECT * FROM 'rows.parquet') TO 'rows.csv'",
    "COPY (SELECT * FROM 'rows.parquet') TO 'rows.json'",
    "COPY (SELECT value AS k, value % 7 AS g FROM range(1000000)) TO 'items.parquet'",
    "COPY (SELECT repeat(concat('some text ', value, ' '), 2000) AS t FROM range(1000)) TO 'texts.parquet'",
    "COPY (SELECT range(0, 1000) AS l FROM range(100)) TO 'lists.parquet'",
    "CREATE VIEW items AS SELECT * FROM 'items.parquet'",
    "CREATE VIEW texts AS SELECT * FROM 'texts.parquet'",
    "CREATE VIEW lists AS SELECT * FROM 'lists.parquet'",
    "CREATE TABLE kept (k BIGINT)",
    "SET datafusion.execution.batch_size = 8192",
];

/// Kinds that a run of the whole suite tries. Planning is not among them: one rule on one huge expression goes on for seconds.
pub const SOME: [&str; 6] =
    ["nested loop join", "quadratic window frame", "sort", "regular expression", "endless recursion", "copy to CSV"];

/// What the settings of a kind go back to.
pub const DEFAULTS: [&str; 2] = ["SET datafusion.runtime.memory_limit = '1GB'", "SET overspill.device = 'auto'"];

pub const KINDS: [Kind; 42] = [
    kind("inner join", "SELECT count(*) FROM items a JOIN items b ON a.g = b.g AND a.k + b.k > 5"),
    kind("left join", "SELECT count(b.k) FROM items a LEFT JOIN items b ON a.g = b.g"),
    kind("full join", "SELECT count(b.k) FROM items a FULL JOIN items b ON a.g = b.g AND a.k % 3 = b.k % 5"),
    kind(
        "semi join",
        "SELECT count(*) FROM items a WHERE EXISTS (SELECT 1 FROM items b WHERE a.g = b.g AND a.k + b.k < 0)",
    ),
    kind(
        "anti join",
        "SELECT count(*) FROM items a WHERE NOT EXISTS (SELECT 1 FROM items b WHERE a.g = b.g AND a.k + b.k < 0)",
    ),
    kind("nested loop join", "SELECT count(*) FROM items a JOIN items b ON a.k * b.k % 11 < b.g - a.g"),
    kind("nested loop left join", "SELECT count(b.k) FROM items a LEFT JOIN items b ON a.k * b.k % 11 < b.g - a.g"),
    kind(
        "nested loop semi join",
        "SELECT count(*) FROM items a WHERE EXISTS (SELECT 1 FROM items b WHERE a.k + b.k < a.g - 20)",
    ),
    kind("cross join", "SELECT sum(a.k * b.k % 3) FROM items a, items b"),
    kind(
        "sort",
        "SELECT max(r) FROM (SELECT row_number() OVER (ORDER BY value % 1000003, value) AS r FROM range(100000000))",
    ),
    kind("top of a sort", "SELECT * FROM range(5000000000) t(v) ORDER BY v % 100003 DESC, v LIMIT 5"),
    kind("running window", "SELECT max(s) FROM (SELECT sum(value) OVER (ORDER BY value) AS s FROM range(200000000))"),
    kind(
        "quadratic window frame",
        "SELECT max(m) FROM (SELECT max(value) OVER (ORDER BY value ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS m FROM range(10000000))",
    ),
    kind(
        "sliding window frame",
        "SELECT max(m) FROM (SELECT stddev(value) OVER (ORDER BY value ROWS BETWEEN 100000 PRECEDING AND 100000 FOLLOWING) AS m FROM range(3000000))",
    ),
    kind(
        "window of partitions",
        "SELECT max(m) FROM (SELECT nth_value(value, 2) OVER (PARTITION BY value % 3 ORDER BY value RANGE BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS m FROM range(30000000))",
    ),
    kind("aggregate without groups", "SELECT sum(value * 3 % 7) FROM range(100000000000)"),
    kind(
        "aggregate with groups",
        "SELECT count(*) FROM (SELECT value % 5000000 AS g, avg(value) AS a FROM range(10000000000) GROUP BY g)",
    ),
    kind("distinct aggregate", "SELECT count(DISTINCT value % 3000000) FROM range(10000000000)"),
    kind("median", "SELECT median(value % 100003) FROM range(40000000)"),
    kind("text aggregate", "SELECT length(string_agg(CAST(value AS VARCHAR), ',')) FROM range(2000000000)"),
    kind("distinct", "SELECT count(*) FROM (SELECT DISTINCT value % 5000000 FROM range(10000000000))"),
    kind(
        "endless recursion",
        "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r WHERE n < 0",
    ),
    kind(
        "regular expression",
        "SELECT count(*) FROM texts a, texts b WHERE regexp_like(concat(a.t, b.t), '(s|so|som)+(e t|e te).*[0-9]{3} nothing$')",
    ),
    kind(
        "replacing",
        "SELECT sum(length(regexp_replace(concat(a.t, b.t), '([a-z]+) ([a-z]+)', '\\2 \\1', 'g'))) FROM texts a, texts b",
    ),
    kind("edit distance", "SELECT max(levenshtein(substr(a.t, 1, 3000), substr(b.t, 1, 3000))) FROM texts a, texts b"),
    kind("huge values", "SELECT sum(length(reverse(upper(repeat(a.t, 3))))) FROM texts a, texts b"),
    kind("series", "SELECT count(*) FROM generate_series(1, 500000000000) WHERE value % 3 = 4"),
    kind(
        "union",
        "SELECT count(*) FROM (SELECT value % 3000000 FROM range(5000000000) UNION SELECT value % 3000001 FROM range(5000000000))",
    ),
    kind(
        "except",
        "SELECT count(*) FROM (SELECT value FROM range(50000000) EXCEPT SELECT value * 2 FROM range(50000000))",
    ),
    kind("unnest", "SELECT sum(v) FROM (SELECT unnest(a.l) AS v FROM lists a, items b)"),
    kind(
        "correlated subquery",
        "SELECT count(*) FROM items a JOIN items c ON a.g = c.g WHERE a.k < (SELECT max(b.k) FROM items b WHERE b.g = a.g)",
    ),
    kind("copy to CSV", "COPY (SELECT value, value % 7 FROM range(1000000000)) TO 'copied.csv'"),
    kind("copy to Parquet", "COPY (SELECT value, value % 7 FROM range(1000000000)) TO 'copied.parquet'"),
    kind(
        "create table as",
        "CREATE TABLE made AS SELECT value % 1000 AS m FROM range(100000000000) WHERE value % 1000003 = 7",
    ),
    kind("insert", "INSERT INTO kept SELECT value FROM range(100000000000) WHERE value % 1000003 = 7"),
    kind("files", "SELECT count(*) FROM 'rows.csv' a, 'rows.json' b, 'rows.parquet' c WHERE a.k + b.k + c.k = 7"),
    spilling("spilling join", "SELECT sum(a.value) FROM range(30000000) a JOIN range(30000000) b ON a.value = b.value"),
    spilling(
        "spilling sort",
        "SELECT max(r) FROM (SELECT row_number() OVER (ORDER BY value % 1000003, value) AS r FROM range(60000000))",
    ),
    Kind {
        name: "emulated device",
        sql: "SELECT count(*) FROM range(20000000) a JOIN range(20000000) b ON a.value = b.value",
        settings: &["SET overspill.device = 'emulated'"],
    },
    Kind {
        name: "create index",
        sql: "CREATE INDEX i ON 'many.parquet' (k)",
        settings: &[
            "COPY (SELECT value * 48271 % 60000011 AS k FROM range(60000000)) TO 'many.parquet'",
            "SET datafusion.runtime.memory_limit = '32MB'",
        ],
    },
    kind("planning", "PLANNING"),
    kind("explain analyze", "EXPLAIN ANALYZE SELECT count(*) FROM items a JOIN items b ON a.g = b.g"),
];
