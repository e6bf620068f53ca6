//! Statements that are long or deeply nested: they work, or an error says why not. None ends the process.

use crate::shell::Shell;

fn chain(count: usize, between: &str, operand: impl Fn(usize) -> String) -> String {
    (0..count).map(operand).collect::<Vec<_>>().join(between)
}

/// Runs a statement from a file: it may be longer than an argument can be.
fn answer(shell: &Shell, sql: &str) -> String {
    shell.write("deep.sql", sql);
    shell.succeed(&["--format", "csv", "-f", "deep.sql"])
}

#[test]
fn long_chains_work() {
    let shell = Shell::new();
    let ors = chain(20_000, " OR ", |number| format!("value = {number}"));
    assert_eq!(answer(&shell, &format!("SELECT count(*) AS c FROM range(10) WHERE {ors}")), "c\n10\n");
    let ands = chain(5_000, " AND ", |number| format!("value <> {number}"));
    assert_eq!(answer(&shell, &format!("SELECT count(*) AS c FROM range(5010) WHERE {ands}")), "c\n10\n");
    let unions = chain(3_000, " UNION ALL ", |number| format!("SELECT {number} AS a"));
    assert_eq!(answer(&shell, &format!("SELECT count(*) AS c, sum(a) AS s FROM ({unions})")), "c,s\n3000,4498500\n");
}

#[test]
fn deep_trees_work_up_to_a_limit_and_are_refused_beyond() {
    let shell = Shell::new();
    let null_tests = |count: usize| format!("SELECT value{} AS a FROM range(1)", " IS NULL".repeat(count));
    assert_eq!(answer(&shell, &null_tests(900)), "a\nfalse\n");
    let differences = chain(900, " - ", |number| format!("value % {}", number + 2));
    assert_eq!(answer(&shell, &format!("SELECT {differences} AS a FROM range(1, 2)")), "a\n-898\n");
    let tables = |count: usize| {
        let tables = chain(count, ", ", |number| match number {
            0 => "t0 AS (SELECT 1 AS a)".to_string(),
            number => format!("t{number} AS (SELECT a FROM t{})", number - 1),
        });
        format!("WITH {tables} SELECT a FROM t{}", count - 1)
    };
    assert_eq!(answer(&shell, &tables(300)), "a\n1\n");
    let parentheses = |count: usize| format!("SELECT {}1{} AS a", "(".repeat(count), ")".repeat(count));
    assert_eq!(answer(&shell, &parentheses(200)), "a\n1\n");
    for (sql, words) in [
        (null_tests(100_000), "levels deep"),
        (format!("SELECT {} FROM range(1)", chain(20_000, " + ", |_| "value".to_string())), "levels deep"),
        (chain(20_000, " EXCEPT ", |number| format!("SELECT {number}")), "levels deep"),
        (parentheses(20_000), "recursion_limit"),
    ] {
        shell.write("deep.sql", sql);
        let error = shell.fail(&["-f", "deep.sql"]);
        assert!(error.contains(words), "{error}");
    }
}

/// Address space that suffices for the program, but not for the stacks of deep statements.
#[cfg(target_os = "linux")]
#[test]
fn a_process_with_little_address_space_plans_short_statements_and_refuses_deep_ones() {
    const KIBIBYTES: usize = 900_000;
    let shell = Shell::new();
    let run = |sql: &str| {
        shell.write("limited.sql", sql);
        let script = format!("ulimit -v {KIBIBYTES} && exec \"$0\" --threads 1 --format csv -f limited.sql");
        let binary = std::path::Path::new("/bin/sh");
        shell.command_at(binary).args(["-c", &script, env!("CARGO_BIN_EXE_overspill")]).output().unwrap()
    };
    let short = run("SELECT count(*) AS c FROM range(10)");
    assert_eq!(String::from_utf8_lossy(&short.stdout), "c\n10\n", "{}", String::from_utf8_lossy(&short.stderr));
    let tables =
        chain(4, ", ", |number| format!("t{number} AS (SELECT value{} FROM range(1))", " IS NULL".repeat(900)));
    let deep = run(&format!("WITH {tables} SELECT count(*) FROM t0, t1, t2, t3"));
    let error = String::from_utf8_lossy(&deep.stderr);
    assert!(deep.status.code() == Some(1) && error.contains("no address space"), "{:?} {error}", deep.status);
}

/// What a view or a prepared statement holds is as deep as a statement may be, though those that name it are short.
#[test]
fn deep_views_and_prepared_statements_work() {
    let shell = Shell::new();
    let deep = format!("SELECT value{} AS a FROM range(1)", " IS NULL".repeat(900));
    let sql = format!("CREATE VIEW v AS {deep}; PREPARE p AS {deep}; SELECT * FROM v; EXECUTE p;");
    assert_eq!(answer(&shell, &sql), "a\nfalse\na\nfalse\n");
}
