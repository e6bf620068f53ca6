//! Cases whose SQL and types DuckDB shares, written out for it to check.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use tempfile::TempDir;

use super::rows::{Answer, write_parquet_file};

/// A folder with a subfolder per case, which has its tables and Overspill's answer as Parquet files, and a list of the cases.
pub struct Export {
    directory: TempDir,
    cases: Mutex<Vec<serde_json::Value>>,
}

impl Export {
    pub fn new() -> Result<Self> {
        Ok(Self { directory: TempDir::new()?, cases: Mutex::default() })
    }

    /// Adds a case: its number, how it is run again, its query, and the tables of the query with their rows.
    pub fn add<'a>(
        &self,
        number: u64,
        again: &str,
        sql: &str,
        tables: impl IntoIterator<Item = (String, &'a SchemaRef, &'a [RecordBatch])>,
        answer: &Answer,
    ) -> Result<()> {
        let folder = self.directory.path().join(number.to_string());
        std::fs::create_dir_all(&folder)?;
        let mut names = Vec::new();
        for (name, schema, rows) in tables {
            write_parquet_file(&folder.join(format!("{name}.parquet")), schema, rows)?;
            names.push(name);
        }
        write_parquet_file(&folder.join("result.parquet"), &answer.schema, &answer.batches)?;
        self.cases.lock().unwrap().push(serde_json::json!({
            "number": number,
            "again": again,
            "sql": sql,
            "folder": folder,
            "tables": names,
        }));
        Ok(())
    }

    /// Has DuckDB answer every case, in one process of `python`. Returns how many cases there were.
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
