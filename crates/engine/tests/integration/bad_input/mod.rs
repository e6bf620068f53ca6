//! Inputs and budgets at the edge of what makes sense.
