//! Joins without an equality give the rows that stock DataFusion gives, in ample memory and at their floor; with faults
//! in reservations and files they end in the right answer or in a sentence, and given up they leave nothing behind.

mod cancellation;
mod case;
mod faults;
mod plans;
mod random;
