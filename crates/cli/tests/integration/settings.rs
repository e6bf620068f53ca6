use crate::shell::Shell;

fn value(shell: &Shell, arguments: &[&str], name: &str) -> String {
    let sql = format!("SELECT value FROM information_schema.df_settings WHERE name = '{name}'");
    let mut all = vec!["--format", "csv", "-c", &sql];
    all.extend(arguments);
    shell.succeed(&all).lines().nth(1).unwrap_or_default().to_string()
}

#[test]
fn set_reaches_datafusion_and_overspill() {
    let shell = Shell::new();
    let batch = "datafusion.execution.batch_size";
    assert_eq!(value(&shell, &["--set", "datafusion.execution.batch_size=123"], batch), "123");
    assert_eq!(value(&shell, &["--set", "overspill.spill=false"], "overspill.spill"), "false");
    let out =
        shell.succeed(&["--format", "csv", "-c", "SET overspill.max_fanout = 16", "-c", "SHOW overspill.max_fanout"]);
    assert_eq!(out, "name,value\noverspill.max_fanout,16\n");
}

#[test]
fn set_is_stronger_than_what_the_memory_limit_suggests() {
    let shell = Shell::new();
    let batch = "datafusion.execution.batch_size";
    let small: usize = value(&shell, &["--memory-limit", "64MB"], batch).parse().unwrap();
    assert!(small < 8192, "a small limit makes small batches, not {small}");
    assert_eq!(
        value(&shell, &["--memory-limit", "64MB", "--set", "datafusion.execution.batch_size=8192"], batch),
        "8192"
    );
    let reservation = value(&shell, &["--memory-limit", "64MB"], "datafusion.execution.sort_spill_reservation_bytes");
    assert!(reservation.parse::<usize>().unwrap() < 4 << 20, "{reservation}");
}

#[test]
fn unknown_settings_are_named() {
    let shell = Shell::new();
    for key in ["overspill.nope", "datafusion.nope", "datafusion.execution.nope", "nope", "other.nope"] {
        let error = shell.fail(&["--set", &format!("{key}=1"), "-c", "SELECT 1"]);
        assert!(error.contains(key) && error.contains("no setting"), "{error}");
    }
    assert!(shell.fail(&["-c", "SET overspill.nope = 1"]).contains("nope"));
    assert!(shell.fail(&["--set", "datafusion.batch_size=1"]).contains("datafusion.execution.batch_size"));
    assert!(shell.fail(&["--set", "join_memory_limit=1"]).contains("overspill.join_memory_limit"));
}

#[test]
fn wrong_values_are_named() {
    let shell = Shell::new();
    let error = shell.fail(&["--set", "overspill.spill=maybe", "-c", "SELECT 1"]);
    assert!(error.contains("overspill.spill=maybe") && error.contains("true or false"), "{error}");
    assert!(shell.fail(&["--set", "datafusion.runtime.memory_limit=1M"]).contains("--memory-limit"));
}

#[test]
fn threads_are_partitions() {
    assert_eq!(value(&Shell::new(), &["--threads", "3"], "datafusion.execution.target_partitions"), "3");
}

#[test]
fn sizes_take_units_and_are_shown_as_they_were_given() {
    let shell = Shell::new();
    let limit = "overspill.join_memory_limit";
    assert_eq!(value(&shell, &["--set", "overspill.join_memory_limit=8GiB"], limit), "8GiB");
    let out = shell.succeed(&[
        "--format",
        "csv",
        "-c",
        "SET overspill.join_memory_limit = '64MB'; SHOW overspill.join_memory_limit; \
         SET datafusion.execution.sort_spill_reservation_bytes = '1.5 MiB'; \
         SHOW datafusion.execution.sort_spill_reservation_bytes; \
         SET datafusion.runtime.memory_limit = '300MB'; SHOW datafusion.runtime.memory_limit; \
         SET datafusion.runtime.memory_limit = '2G'; SHOW datafusion.runtime.memory_limit; \
         SET datafusion.runtime.max_temp_directory_size = '5GB'; SHOW datafusion.runtime.max_temp_directory_size",
    ]);
    let shown: Vec<_> = out.lines().filter(|line| *line != "name,value").collect();
    assert_eq!(
        shown,
        [
            "overspill.join_memory_limit,64MB",
            "datafusion.execution.sort_spill_reservation_bytes,1572864",
            "datafusion.runtime.memory_limit,300MB",
            "datafusion.runtime.memory_limit,2GiB",
            "datafusion.runtime.max_temp_directory_size,5GB",
        ]
    );
    assert_eq!(value(&shell, &["--memory-limit", "64MB"], "datafusion.runtime.memory_limit"), "64MB");
    for wrong in ["SET overspill.join_memory_limit = 'much'", "SET datafusion.runtime.memory_limit = '12 parsecs'"] {
        let error = shell.fail(&["-c", wrong]);
        assert!(error.contains("is no size") && error.contains("1.5GiB"), "{error}");
    }
}

#[test]
fn a_memory_error_shows_the_limit_as_it_was_given() {
    let sql = "CREATE TABLE t AS SELECT * FROM range(40000000)";
    let error = Shell::new().fail(&["--memory-limit", "64MB", "-c", sql]);
    assert!(error.contains("memory limit of 64MB") && !error.contains("61.0 MB"), "{error}");
}

#[test]
fn a_setting_that_is_not_there_suggests_the_nearest() {
    let shell = Shell::new();
    for sql in ["SET overspill.stratgy = 'radix'", "SHOW overspill.stratgy"] {
        let error = shell.fail(&["-c", sql]);
        assert!(error.contains("overspill.strategy"), "{sql}: {error}");
    }
    assert!(!shell.fail(&["-c", "SET overspill.nothing_alike = 1"]).contains("did you mean"));
    let error = shell.fail(&["-c", "SET datafusion.execution.batch_size = 'many'"]);
    assert!(error.contains("datafusion.execution.batch_size") && error.contains("whole number"), "{error}");
}

#[test]
fn the_page_of_settings_has_each_with_its_default() {
    let shell = Shell::new();
    let sql = "SELECT name, value FROM information_schema.df_settings WHERE name LIKE 'overspill.%' ORDER BY name";
    let settings = shell.succeed(&["--format", "csv", "-c", sql]);
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/settings.md");
    let mut listed: Vec<String> = std::fs::read_to_string(page)
        .unwrap()
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` | `"))
        .filter_map(|(name, rest)| Some(format!("{name},{}", rest.split_once('`')?.0)))
        .collect();
    listed.sort();
    assert_eq!(listed, settings.lines().skip(1).collect::<Vec<_>>());
}
