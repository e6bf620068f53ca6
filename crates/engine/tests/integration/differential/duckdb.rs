//! Cases whose SQL and types DuckDB shares, written out for it to check.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use datafusion::common::Result;
use tempfile::TempDir;

use super::tables::{Table, write_parquet_file};
use crate::harness::rows::Answer;

/// A folder with a subfolder per case (its tables and Overspill's answer as Parquet files) and a list of them.
pub struct Export {
    directory: TempDir,
    cases: Mutex<Vec<serde_json::Value>>,
}

impl Export {
    pub fn new() -> Result<Self> {
        Ok(Self { directory: TempDir::new()?, cases: Mutex::default() })
    }

    pub fn add(&self, seed: u64, sql: &str, tables: &[Table], answer: &Answer) -> Result<()> {
        let folder = self.directory.path().join(seed.to_string());
        // The others are not in the query.
        let tables: Vec<_> = tables.iter().filter(|table| table.known_to_duckdb()).collect();
        for table in &tables {
            table.write_parquet(&folder)?;
        }
        let result = folder.join("result.parquet");
        write_parquet_file(&result, &answer.schema, &answer.batches)?;
        let names: Vec<String> = tables.iter().map(|table| table.name.to_string()).collect();
        self.cases.lock().unwrap().push(serde_json::json!({
            "seed": seed,
            "sql": sql,
            "folder": folder,
            "tables": names,
        }));
        Ok(())
    }

    /// Has DuckDB answer every case, in one process of `python`; gives back how many there were.
    pub fn check(&self, python: &Path) -> Result<usize, String> {
        let cases = self.cases.lock().unwrap();
        let list = self.directory.path().join("cases.json");
        let text = serde_json::to_string(&*cases).map_err(|error| error.to_string())?;
        std::fs::write(&list, text).map_err(|error| error.to_string())?;
        let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/differential/check_duckdb.py");
        let output = Command::new(python)
            .arg(script)
            .arg(&list)
            .output()
            .map_err(|error| format!("{} did not start: {error}", python.display()))?;
        if output.status.success() {
            print!("{}", String::from_utf8_lossy(&output.stdout));
            return Ok(cases.len());
        }
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        Err(format!("DuckDB disagrees\n{text}"))
    }
}
