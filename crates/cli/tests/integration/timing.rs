use crate::shell::Shell;

#[test]
fn each_statement_has_its_time_on_standard_error() {
    let shell = Shell::new();
    let run = shell.run(&["--timing", "--on-error", "continue", "-c", "SELECT 1; SELEC 2", "-c", "SELECT 3"]);
    let times: Vec<_> = run.err.lines().filter(|line| line.starts_with("time ")).collect();
    assert_eq!(times.len(), 3, "{}", run.err);
    for (number, line) in times.iter().enumerate() {
        let fields: Vec<_> = line.split(' ').collect();
        assert_eq!(fields[1], (number + 1).to_string());
        assert!(fields[2].parse::<f64>().unwrap() >= 0.0);
    }
}

#[test]
fn a_longer_statement_takes_longer() {
    let run = Shell::new().run(&["--timing", "-c", "SELECT count(*) FROM range(30000000) WHERE value % 7 = 3"]);
    let seconds: f64 = run.err.trim().rsplit(' ').next().unwrap().parse().unwrap();
    assert!(seconds > 0.0005, "{}", run.err);
}

#[test]
fn the_timer_is_switched_in_a_script() {
    let script =
        b"-- how long it takes\n/* in words */ -- and a comment\n.timer on\nSELECT 1;\n.timer off\nSELECT 2;\n";
    let run = Shell::new().run_with_input(&[], script);
    assert_eq!(run.err.lines().count(), 1, "{}", run.err);
    assert!(run.err.starts_with("ran in 0.") && run.err.ends_with(" s\n"), "{}", run.err);
}
