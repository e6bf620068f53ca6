//! One stream of rows for several readers.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::future::{BoxFuture, FutureExt, Shared};
use futures::{StreamExt, stream};
use parking_lot::Mutex;

/// Streams that share the batches of a stream: each batch goes to the reader that takes it first. A reader that is polled no more holds
/// up no other.
pub(super) fn pulled(rows: SendableRecordBatchStream, readers: usize) -> Vec<SendableRecordBatchStream> {
    let schema = rows.schema();
    let state = State { rows: Some(rows), arrived: None, pull: None, failed: None };
    let pulled = Arc::new(Pulled(Mutex::new(state)));
    let reader = |_| {
        let batches = stream::try_unfold(Arc::clone(&pulled), |pulled| async move {
            Ok(pulled.next().await?.map(|batch| (batch, pulled)))
        });
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&schema), batches)) as SendableRecordBatchStream
    };
    (0..readers).map(reader).collect()
}

struct Pulled(Mutex<State>);

/// Waits for the next batch. Each reader that waits polls it, and any of them can complete it.
type Pull = Shared<BoxFuture<'static, ()>>;

struct State {
    /// Where further batches come from; `None` at the end, and while one is pulled.
    rows: Option<SendableRecordBatchStream>,
    /// A batch that no reader has taken.
    arrived: Option<RecordBatch>,
    pull: Option<Pull>,
    failed: Option<Arc<DataFusionError>>,
}

impl Pulled {
    /// A batch that no other reader gets; `None` at the end.
    async fn next(self: &Arc<Self>) -> Result<Option<RecordBatch>> {
        loop {
            let pull = {
                let mut state = self.0.lock();
                if let Some(batch) = state.arrived.take() {
                    return Ok(Some(batch));
                }
                if let Some(error) = &state.failed {
                    return Err(DataFusionError::Shared(Arc::clone(error)));
                }
                if state.pull.is_none()
                    && let Some(mut rows) = state.rows.take()
                {
                    // The pull is kept here: it must not keep this.
                    let pulled = Arc::downgrade(self);
                    let pull = async move {
                        let batch = rows.next().await;
                        let Some(pulled) = pulled.upgrade() else { return };
                        let mut state = pulled.0.lock();
                        state.pull = None;
                        match batch {
                            Some(Ok(batch)) => (state.arrived, state.rows) = (Some(batch), Some(rows)),
                            Some(Err(error)) => state.failed = Some(Arc::new(error)),
                            None => {}
                        }
                    };
                    state.pull = Some(pull.boxed().shared());
                }
                match &state.pull {
                    Some(pull) => pull.clone(),
                    None => return Ok(None),
                }
            };
            pull.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, Int32Array};
    use arrow::datatypes::{DataType, Field, Int32Type, Schema};
    use datafusion::common::exec_err;
    use futures::{FutureExt, StreamExt, stream};

    use super::*;

    fn numbers(batches: Vec<Result<i32>>) -> SendableRecordBatchStream {
        let schema = Arc::new(Schema::new(vec![Field::new("a", DataType::Int32, false)]));
        let of = Arc::clone(&schema);
        let batch = move |number: Result<i32>| {
            let column = Arc::new(Int32Array::from(vec![number?]));
            Ok(RecordBatch::try_new(Arc::clone(&of), vec![column])?)
        };
        // Each batch makes its reader wait once.
        let batches = stream::iter(batches).then(move |number| {
            let batch = batch(number);
            async move {
                tokio::task::yield_now().await;
                batch
            }
        });
        Box::pin(RecordBatchStreamAdapter::new(schema, batches))
    }

    #[tokio::test]
    async fn each_batch_goes_to_one_reader() {
        let mut readers = pulled(numbers((0..100).map(Ok).collect()), 3);
        // It has asked for a batch, and is polled no more.
        assert!(readers[0].next().now_or_never().is_none());
        let abandoned = readers.remove(0);
        let all =
            readers.into_iter().map(|reader| tokio::spawn(reader.map(|batch| batch.unwrap()).collect::<Vec<_>>()));
        let mut seen = vec![];
        for reader in all.collect::<Vec<_>>() {
            let batches = reader.await.unwrap();
            seen.extend(batches.iter().map(|batch| batch.column(0).as_primitive::<Int32Type>().value(0)));
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..100).collect::<Vec<_>>());
        drop(abandoned);
    }

    #[tokio::test]
    async fn an_error_is_seen_by_all() {
        let mut readers = pulled(numbers(vec![Ok(1), exec_err!("lost")]), 2);
        assert!(readers[0].next().await.unwrap().is_ok());
        for reader in &mut readers {
            assert!(reader.next().await.unwrap().unwrap_err().message().contains("lost"));
        }
    }
}
