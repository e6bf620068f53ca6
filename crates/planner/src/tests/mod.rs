//! Orders against an oracle that evaluates them, against all orders, and against formulas.

mod answers;
mod bad_input;
mod caution;
mod classes;
mod core;
mod correlation;
mod estimates;
mod implied;
mod large;
mod optimal;
mod oracle;
mod pairs;
mod planted;
mod queries;
mod shapes;
