//! The tables of TPC-DS.

use std::io::Write;
use std::ops::RangeInclusive;

use arrow::array::RecordBatchReader;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use datafusion::common::Result;
use tpcdsgen::config::{Scaling, Session, Table as Kind};
use tpcdsgen_arrow::{
    CallCenterArrow, CatalogPageArrow, CatalogReturnsArrow, CatalogSalesArrow, CustomerAddressArrow, CustomerArrow,
    CustomerDemographicsArrow, DateDimArrow, HouseholdDemographicsArrow, IncomeBandArrow, InventoryArrow, ItemArrow,
    PromotionArrow, ReasonArrow, ShipModeArrow, StoreArrow, StoreReturnsArrow, StoreSalesArrow, TimeDimArrow,
    WarehouseArrow, WebPageArrow, WebReturnsArrow, WebSalesArrow, WebSiteArrow,
};

use super::tables::{self, Batches, TablesArgs};

/// A table of TPC-DS.
#[derive(Clone, Copy)]
struct Table {
    kind: Kind,
    /// Generates the rows of a range of source rows, which start from 1. A source row is a row, or an order of several.
    reader: fn(Session, RangeInclusive<u64>) -> Box<dyn RecordBatchReader>,
}

macro_rules! table {
    ($kind:ident, $reader:ident) => {
        Table {
            kind: Kind::$kind,
            reader: |session, rows| Box::new($reader::new(session).with_source_row_range(*rows.start(), *rows.end())),
        }
    };
}

/// The tables. Those with few rows at a scale factor of 1 come first, so that output starts soon.
const TABLES: [Table; 24] = [
    table!(Warehouse, WarehouseArrow),
    table!(CallCenter, CallCenterArrow),
    table!(Store, StoreArrow),
    table!(IncomeBand, IncomeBandArrow),
    table!(ShipMode, ShipModeArrow),
    table!(WebSite, WebSiteArrow),
    table!(WebPage, WebPageArrow),
    table!(Reason, ReasonArrow),
    table!(Promotion, PromotionArrow),
    table!(HouseholdDemographics, HouseholdDemographicsArrow),
    table!(CatalogPage, CatalogPageArrow),
    table!(Item, ItemArrow),
    table!(CustomerAddress, CustomerAddressArrow),
    table!(WebReturns, WebReturnsArrow),
    table!(DateDim, DateDimArrow),
    table!(TimeDim, TimeDimArrow),
    table!(Customer, CustomerArrow),
    table!(CatalogReturns, CatalogReturnsArrow),
    table!(StoreReturns, StoreReturnsArrow),
    table!(WebSales, WebSalesArrow),
    table!(CatalogSales, CatalogSalesArrow),
    table!(CustomerDemographics, CustomerDemographicsArrow),
    table!(StoreSales, StoreSalesArrow),
    table!(Inventory, InventoryArrow),
];

impl Table {
    fn source_rows(self, scale: f64) -> u64 {
        Scaling::new(scale).get_row_count(self.kind)
    }

    /// The average number of rows of a source row, in tenths.
    fn tenths_of_rows(self) -> u64 {
        match self.kind {
            // Orders of 8 to 16 lines and of 4 to 14.
            Kind::StoreSales | Kind::WebSales => 120,
            Kind::CatalogSales => 90,
            // A tenth of the lines is returned.
            Kind::StoreReturns | Kind::WebReturns => 12,
            Kind::CatalogReturns => 9,
            _ => 10,
        }
    }
}

impl tables::Table for Table {
    const BENCHMARK: &str = "tpcds";

    fn name(self) -> String {
        self.kind.get_name().to_owned()
    }

    fn schema(self) -> SchemaRef {
        (self.reader)(Session::default(), 1..=1).schema()
    }

    fn rows(self, scale: f64) -> u64 {
        self.source_rows(scale) * self.tenths_of_rows() / 10
    }

    fn batches(self, scale: f64, part: usize, parts: usize) -> Batches {
        // The product of rows and parts exceeds 64 bits at the largest scales.
        let until = |part: usize| (u128::from(self.source_rows(scale)) * part as u128 / parts as u128) as u64;
        let session = Session::default().into_builder().with_scale_factor(scale).build();
        match session {
            Ok(session) => (self.reader)(session, until(part - 1) + 1..=until(part)),
            Err(error) => Box::new(std::iter::once(Err(ArrowError::ExternalError(Box::new(error))))),
        }
    }
}

/// The names of the tables.
pub(crate) fn names() -> impl Iterator<Item = String> {
    TABLES.into_iter().map(tables::Table::name)
}

pub(crate) fn generate(args: &TablesArgs, out: &mut dyn Write) -> Result<()> {
    tables::generate(&TABLES, args, out)
}

#[cfg(test)]
mod tests;
