use crate::shell::Shell;

#[test]
fn generated_tables_can_be_joined() {
    let shell = Shell::new();
    let run = shell.run(&["datagen", "tpch", "--scale", "0.01", "--dir", "tpch"]);
    assert_eq!(run.status, 0, "{}", run.err);
    let sql = "SELECT count(*) AS c FROM 'tpch/orders.parquet' JOIN 'tpch/lineitem.parquet' ON o_orderkey = l_orderkey";
    assert_eq!(shell.rows(sql), ["{\"c\":60175}"]);
}

#[test]
fn the_tools_fail_as_the_shell_does() {
    let shell = Shell::new();
    assert_eq!(shell.run(&["datagen", "tpch", "--scale", "much"]).status, 2);
    assert_eq!(shell.run(&["datagen", "elephants"]).status, 2);
    shell.write("file", "");
    let error = shell.fail(&["datagen", "tpch", "--scale", "0.01", "--dir", "file/tpch"]);
    assert!(error.contains("file/tpch"), "{error}");
}
