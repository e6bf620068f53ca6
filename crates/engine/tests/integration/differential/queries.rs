//! Random join queries over the tables `a`, `b` and `c`.

use arrow::compute::SortOptions;
use datafusion::common::{JoinType, NullEquality, Result};
use datafusion::logical_expr::{Expr, LogicalPlanBuilder};
use datafusion::prelude::{DataFrame, SessionContext, col, lit};
use rand::Rng;
use rand::seq::{IndexedRandom, SliceRandom};

use super::tables::Table;
use crate::harness::rows::OrderBy;

/// The largest number of pairs that a query returns as rows; above this it counts them.
pub const MOST_ROWS: usize = 40_000;

/// Pairs of rows beyond which a join only costs time.
pub const MOST_PAIRS: usize = 1_500_000;

/// A query and how its answer is judged.
#[derive(Clone, Debug)]
pub struct Query {
    pub source: Source,
    /// The order that its ORDER BY asks for.
    pub order: Vec<OrderBy>,
    /// A LIMIT that leaves open which rows; the source is the query without it.
    pub any_of: Option<usize>,
    /// The same in DuckDB's dialect, where it has one.
    pub duckdb: Option<String>,
    pub reference: Reference,
}

/// Whose answer the other runs of a query must give.
#[derive(Clone, Copy, Debug)]
pub enum Reference {
    /// Stock DataFusion's.
    Stock,
    /// Overspill's in ample memory, which DuckDB checks. `refusable` names the construct for which it may be a refusal.
    AmpleMemory { refusable: Option<&'static str> },
}

/// SQL, or a join of the DataFrame API that SQL has no words for.
#[derive(Clone, Debug)]
pub enum Source {
    Sql(String),
    Frame { join_type: JoinType, keys: usize, residual: bool, null_equality: NullEquality },
}

impl Source {
    /// Plans the query; `limit` is added as its LIMIT.
    pub async fn plan(&self, ctx: &SessionContext, limit: Option<usize>) -> Result<DataFrame> {
        let frame = match self {
            Source::Sql(sql) => {
                let limit = limit.map(|limit| format!(" LIMIT {limit}")).unwrap_or_default();
                return ctx.sql(&format!("{sql}{limit}")).await;
            }
            Source::Frame { join_type, keys, residual, null_equality } => {
                let (state, left) = ctx.table("a").await?.into_parts();
                let right = ctx.table("b").await?.into_unoptimized_plan();
                let columns = |side: char| (0..*keys).map(|key| format!("{side}_k{key}")).collect::<Vec<_>>();
                let filter: Option<Expr> = residual.then(|| (col("a_v") + lit(2)).gt(col("b_v")));
                let plan = LogicalPlanBuilder::from(left)
                    .join_detailed(right, *join_type, (columns('a'), columns('b')), filter, *null_equality)?
                    .build()?;
                DataFrame::new(state, plan)
            }
        };
        match limit {
            Some(limit) => frame.limit(0, Some(limit)),
            None => Ok(frame),
        }
    }
}

/// The rows that the query's FROM and WHERE give, before it selects columns of them.
struct Relation {
    from: String,
    filter: Vec<String>,
    /// Tables whose columns may be selected.
    visible: Vec<char>,
    duckdb: Option<String>,
    /// About how many rows it has.
    rows: usize,
}

/// Draws queries over the tables of one case.
pub struct Generator<'a, R> {
    pub rng: &'a mut R,
    /// `a`, `b` and perhaps `c`.
    pub tables: &'a [Table],
    /// Whether two NULLs among the keys are equal.
    null_equal: bool,
}

impl<'a, R: Rng> Generator<'a, R> {
    /// NULLs are equal in some queries over tables that have not too many of them.
    pub fn new(rng: &'a mut R, tables: &'a [Table]) -> Self {
        let null_equal = rng.random_bool(0.25) && pairs_of_all(tables, true) <= MOST_PAIRS;
        Self { rng, tables, null_equal }
    }

    pub fn query(&mut self) -> Query {
        match self.rng.random_range(0..100) {
            0..8 => self.frame(),
            8..13 => self.set_operation(),
            _ => {
                let relation = self.relation();
                self.select(relation)
            }
        }
    }

    fn frame(&mut self) -> Query {
        let join_type = *[
            JoinType::LeftMark,
            JoinType::RightMark,
            JoinType::LeftMark,
            JoinType::RightMark,
            JoinType::RightSemi,
            JoinType::RightAnti,
            JoinType::LeftAnti,
            JoinType::Full,
        ]
        .choose(self.rng)
        .unwrap();
        let keys = self.keys_used();
        // Only a full join gives a row for each pair; there is no aggregate here to keep many of them small.
        let join_type = if self.pairs(keys) > MOST_ROWS { JoinType::LeftMark } else { join_type };
        let null_equality =
            if self.null_equal { NullEquality::NullEqualsNull } else { NullEquality::NullEqualsNothing };
        let residual = self.rng.random_bool(0.3);
        let source = Source::Frame { join_type, keys, residual, null_equality };
        Query { source, order: vec![], any_of: None, duckdb: None, reference: Reference::Stock }
    }

    /// INTERSECT and EXCEPT become semi and anti joins in which NULL equals NULL. With ALL they are among those that
    /// DuckDB judges.
    fn set_operation(&mut self) -> Query {
        let keys = self.keys_used();
        let word = *["INTERSECT", "EXCEPT"].choose(self.rng).unwrap();
        let columns = |side: char| (0..keys).map(|key| format!("{side}_k{key}")).collect::<Vec<_>>().join(", ");
        let sql = format!("SELECT {} FROM a {word} SELECT {} FROM b", columns('a'), columns('b'));
        let duckdb = self.known_to_duckdb(&['a', 'b']).then(|| sql.clone());
        Query { source: Source::Sql(sql), order: vec![], any_of: None, duckdb, reference: Reference::Stock }
    }

    fn relation(&mut self) -> Relation {
        let three = self.tables.len() == 3;
        match self.rng.random_range(0..100) {
            _ if three => self.three_way(),
            0..45 => self.plain_join(),
            45..60 => self.semi_or_anti_join(),
            60..73 => self.exists(),
            73..87 => self.in_subquery(),
            _ => self.mark(),
        }
    }

    fn plain_join(&mut self) -> Relation {
        let keys = self.keys_used();
        let word = *["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"].choose(self.rng).unwrap();
        let on = self.on('a', 'b', keys);
        let from = format!("a {word} b ON {on}");
        let mut filter = vec![];
        if self.rng.random_bool(0.15) {
            let side = if self.rng.random_bool(0.5) { 'a' } else { 'b' };
            filter.push(self.one_sided(side));
        }
        Relation {
            duckdb: self.known_to_duckdb(&['a', 'b']).then(|| from.clone()),
            from,
            filter,
            visible: vec!['a', 'b'],
            rows: self.pairs(keys),
        }
    }

    fn semi_or_anti_join(&mut self) -> Relation {
        let keys = self.keys_used();
        let side = *["LEFT", "RIGHT"].choose(self.rng).unwrap();
        let kind = *["SEMI", "ANTI"].choose(self.rng).unwrap();
        let on = self.on('a', 'b', keys);
        // DuckDB's semi and anti joins keep the left side and do not say so.
        let duckdb = side == "LEFT" && self.known_to_duckdb(&['a', 'b']);
        let visible = if side == "LEFT" { 'a' } else { 'b' };
        Relation {
            from: format!("a {side} {kind} JOIN b ON {on}"),
            filter: vec![],
            visible: vec![visible],
            duckdb: duckdb.then(|| format!("a {kind} JOIN b ON {on}")),
            rows: self.rows(visible),
        }
    }

    fn exists(&mut self) -> Relation {
        let keys = self.keys_used();
        let on = self.on('b', 'a', keys);
        let not = if self.rng.random_bool(0.5) { "NOT " } else { "" };
        let mut filter = vec![format!("{not}EXISTS (SELECT 1 FROM b WHERE {on})")];
        if self.rng.random_bool(0.3) {
            filter.push(self.one_sided('a'));
        }
        self.over_a(filter)
    }

    fn in_subquery(&mut self) -> Relation {
        let not = if self.rng.random_bool(0.6) { "NOT " } else { "" };
        let inner = if self.rng.random_bool(0.4) { format!(" WHERE {}", self.one_sided('b')) } else { String::new() };
        // Correlated NOT IN is left out: stock DataFusion answers it wrongly (upstream 25347, 25474).
        self.over_a(vec![format!("a_k0 {not}IN (SELECT b_k0 FROM b{inner})")])
    }

    /// A subquery under an OR becomes a mark join. NOT IN … OR is left out: stock DataFusion answers it wrongly
    /// (upstream 8241).
    fn mark(&mut self) -> Relation {
        let keys = self.keys_used();
        let subquery = match self.rng.random_range(0..3) {
            0 => format!("EXISTS (SELECT 1 FROM b WHERE {})", self.on('b', 'a', keys)),
            1 => format!("NOT EXISTS (SELECT 1 FROM b WHERE {})", self.on('b', 'a', keys)),
            _ => "a_k0 IN (SELECT b_k0 FROM b)".to_owned(),
        };
        let other = self.one_sided('a');
        self.over_a(vec![format!("({subquery} OR {other})")])
    }

    fn over_a(&self, filter: Vec<String>) -> Relation {
        Relation {
            from: "a".to_owned(),
            filter,
            visible: vec!['a'],
            duckdb: self.known_to_duckdb(&['a', 'b']).then(|| "a".to_owned()),
            rows: self.rows('a'),
        }
    }

    fn three_way(&mut self) -> Relation {
        let words = ["JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"];
        let (first, second) = (*words.choose(self.rng).unwrap(), *words.choose(self.rng).unwrap());
        let on = self.on('a', 'b', 1);
        let third = if self.rng.random_bool(0.5) { 'a' } else { 'b' };
        let (from, filter, visible) = match self.rng.random_range(0..3) {
            0 => (format!("a {first} b ON {on} {second} c ON {}", self.on(third, 'c', 1)), vec![], vec!['a', 'b', 'c']),
            1 => {
                let inner = self.on('b', 'c', 1);
                (format!("a {first} (SELECT * FROM b {second} c ON {inner}) x ON {on}"), vec![], vec!['a', 'b', 'c'])
            }
            _ => {
                let not = if self.rng.random_bool(0.5) { "NOT " } else { "" };
                let exists = format!("{not}EXISTS (SELECT 1 FROM c WHERE {})", self.on('c', third, 1));
                (format!("a {first} b ON {on}"), vec![exists], vec!['a', 'b'])
            }
        };
        let rows = if visible.len() == 3 { self.triples() } else { self.pairs(1) };
        let duckdb = self.known_to_duckdb(&['a', 'b', 'c']).then(|| from.clone());
        Relation { from, filter, visible, duckdb, rows }
    }

    fn keys_used(&mut self) -> usize {
        let most = self.tables[0].keys.len();
        self.rng.random_range(1..=most)
    }

    fn on(&mut self, left: char, right: char, keys: usize) -> String {
        // All of the keys or none: DataFusion makes a residual filter of the odd one out, and that is no equi-join.
        let equals = if self.null_equal { "IS NOT DISTINCT FROM" } else { "=" };
        let mut on: Vec<String> = (0..keys).map(|key| format!("({left}_k{key} {equals} {right}_k{key})")).collect();
        if self.rng.random_bool(0.3) {
            on.push(match self.rng.random_range(0..6) {
                0 => format!("{left}_v < {right}_v"),
                1 => format!("{left}_v + {right}_v > 6"),
                2 => format!("{left}_id % 3 <> {right}_id % 2"),
                3 => format!("({left}_v <> {right}_v OR {left}_s > {right}_s)"),
                4 => self.one_sided(left),
                _ => self.one_sided(right),
            });
        }
        on.join(" AND ")
    }

    fn one_sided(&mut self, side: char) -> String {
        match self.rng.random_range(0..4) {
            0 => format!("{side}_v > {}", self.rng.random_range(0..9)),
            1 => format!("{side}_v IS NULL"),
            2 => format!("{side}_id % {} = 0", self.rng.random_range(2..9)),
            _ => format!("{side}_s < 't{}'", self.rng.random_range(1..50)),
        }
    }

    fn select(&mut self, relation: Relation) -> Query {
        let many = relation.rows > MOST_ROWS;
        let form = if many { 60 + self.rng.random_range(0..40) } else { self.rng.random_range(0..90) };
        let mut columns: Vec<String> = vec![];
        let mut group_by = "";
        match form {
            0..20 => columns = self.all_columns(&relation.visible),
            20..60 => {
                columns = self.all_columns(&relation.visible);
                columns.shuffle(self.rng);
                columns.truncate(self.rng.random_range(1..=6));
                if self.rng.random_bool(0.15) {
                    columns.push(format!("{}_id + 1", relation.visible[0]));
                }
            }
            60..80 => {
                columns.push("count(*)".to_owned());
                if self.rng.random_bool(0.7) {
                    for side in &relation.visible {
                        columns.push(format!("sum({side}_id)"));
                        columns.push(format!("max({side}_s)"));
                    }
                }
            }
            _ => {
                let side = relation.visible[0];
                columns.push(format!("{side}_v"));
                columns.push("count(*)".to_owned());
                columns.push(format!("sum({side}_id)"));
                group_by = if side == 'a' { " GROUP BY a_v" } else { " GROUP BY b_v" };
            }
        }
        let order = if !(60..80).contains(&form) { self.order(&columns) } else { vec![] };
        let order_by = order_clause(&order);
        // Without a row to give there is no join in the plan, and above a single row a limit says nothing.
        let limit = (form < 60 && self.rng.random_bool(0.15)).then(|| *[1, 10, 500].choose(self.rng).unwrap());
        let filter = if relation.filter.is_empty() {
            String::new()
        } else {
            format!(" WHERE {}", relation.filter.join(" AND "))
        };
        let sql = |from: &str| format!("SELECT {} FROM {from}{filter}{group_by}{order_by}", columns.join(", "));
        Query {
            source: Source::Sql(sql(&relation.from)),
            order,
            any_of: limit,
            duckdb: relation.duckdb.filter(|_| limit.is_none()).map(|from| sql(&from)),
            reference: Reference::Stock,
        }
    }

    fn all_columns(&self, tables: &[char]) -> Vec<String> {
        let mut columns = vec![];
        for table in self.tables.iter().filter(|table| tables.contains(&table.name)) {
            let name = table.name;
            columns.push(format!("{name}_id"));
            columns.extend((0..table.keys.len()).map(|key| format!("{name}_k{key}")));
            columns.push(format!("{name}_v"));
            columns.push(format!("{name}_s"));
            columns.extend((0..table.payload.len()).map(|payload| format!("{name}_p{payload}")));
        }
        columns
    }

    /// Mostly by row numbers, by which the probe side may be sorted already.
    fn order(&mut self, columns: &[String]) -> Vec<OrderBy> {
        if self.rng.random_bool(0.65) {
            return vec![];
        }
        let mut candidates: Vec<usize> = (0..columns.len())
            .filter(|column| columns[*column].ends_with("_id") || columns[*column].ends_with("_v"))
            .collect();
        candidates.sort_by_key(|column| !columns[*column].ends_with("_id"));
        candidates.truncate(self.rng.random_range(1..=2));
        candidates
            .into_iter()
            .map(|column| {
                let descending = self.rng.random_bool(0.2);
                OrderBy { column, options: SortOptions { descending, nulls_first: descending } }
            })
            .collect()
    }

    fn table(&self, name: char) -> &Table {
        self.tables.iter().find(|table| table.name == name).expect("a table of the case")
    }

    fn rows(&self, name: char) -> usize {
        self.table(name).rows()
    }

    fn known_to_duckdb(&self, names: &[char]) -> bool {
        names.iter().all(|name| self.table(*name).known_to_duckdb())
    }

    fn pairs(&self, keys: usize) -> usize {
        pairs(self.tables, keys, self.null_equal)
    }

    fn triples(&self) -> usize {
        triples(self.tables, self.null_equal)
    }
}

/// Pairs or triples of rows of all tables that agree in the first key.
pub fn pairs_of_all(tables: &[Table], null_equal: bool) -> usize {
    if tables.len() == 3 { triples(tables, null_equal) } else { pairs(tables, 1, null_equal) }
}

/// How many pairs of rows of `a` and `b` agree in the first `keys` keys, and about how many rows an outer join adds.
pub fn pairs(tables: &[Table], keys: usize, null_equal: bool) -> usize {
    let right = tables[1].key_counts(keys, null_equal);
    let matches: usize = tables[0]
        .key_counts(keys, null_equal)
        .iter()
        .map(|(key, count)| count * right.get(key).copied().unwrap_or(0))
        .sum();
    matches + tables[0].rows() + tables[1].rows()
}

/// How many triples agree in the first key.
fn triples(tables: &[Table], null_equal: bool) -> usize {
    let (second, third) = (tables[1].key_counts(1, null_equal), tables[2].key_counts(1, null_equal));
    let matches: usize = tables[0]
        .key_counts(1, null_equal)
        .iter()
        .map(|(key, count)| count * second.get(key).copied().unwrap_or(1) * third.get(key).copied().unwrap_or(1))
        .sum();
    // A key may be missing in one table and frequent in the other two.
    let last: usize = second.iter().map(|(key, count)| count * third.get(key).copied().unwrap_or(1)).sum();
    matches + last + tables.iter().map(Table::rows).sum::<usize>()
}

fn order_clause(order: &[OrderBy]) -> String {
    let keys: Vec<String> = order
        .iter()
        .map(|by| {
            let direction = if by.options.descending { "DESC" } else { "ASC" };
            let nulls = if by.options.nulls_first { "FIRST" } else { "LAST" };
            format!("{} {direction} NULLS {nulls}", by.column + 1)
        })
        .collect();
    if keys.is_empty() { String::new() } else { format!(" ORDER BY {}", keys.join(", ")) }
}
