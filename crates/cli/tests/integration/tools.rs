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

#[test]
fn the_machine_is_told_as_text_and_as_json() {
    let shell = Shell::new();
    let text = shell.run(&["machine"]);
    assert_eq!(text.status, 0, "{}", text.err);
    assert!(text.out.starts_with("Processor "), "{}", text.out);
    let json = shell.run(&["machine", "--json"]);
    let machine: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert!(machine["cpu"]["threads"].as_u64().unwrap() > 0);
    // Either there are GPUs, or it is said why not.
    let gpus = machine["gpus"].as_array().unwrap().len();
    assert_eq!(gpus == 0, machine["no_gpu_because"].is_string(), "{}", json.out);
}
