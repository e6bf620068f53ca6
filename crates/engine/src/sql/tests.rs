use datafusion::prelude::SessionContext;

use super::*;

fn parsed(text: &str) -> String {
    parse(&SessionContext::new().state(), text).unwrap().statement.to_string()
}

/// The statement as text, which must keep the order of operands.
fn operands(count: usize, between: &str, operand: impl Fn(usize) -> String) -> String {
    (0..count).map(operand).collect::<Vec<_>>().join(between)
}

#[test]
fn balanced_chains_keep_their_operands_in_order() {
    for between in [" OR ", " AND "] {
        let text = format!("SELECT {} FROM t", operands(1000, between, |number| format!("a = {number}")));
        assert_eq!(parsed(&text), text);
    }
    for between in [" UNION ALL ", " UNION ", " INTERSECT "] {
        let text = operands(1000, between, |number| format!("SELECT {number}"));
        assert_eq!(parsed(&text), text);
    }
}

#[test]
fn chains_in_chains_are_balanced() {
    let ands = |number: usize| operands(200, " AND ", |column| format!("c{column} = {number}"));
    let text = format!("SELECT {} FROM t", operands(200, " OR ", ands));
    assert_eq!(parsed(&text), text);
    let unions = operands(5000, " UNION ALL ", |number| format!("SELECT {number}"));
    let text = format!("{unions} UNION {unions}");
    assert!(parse(&SessionContext::new().state(), &text).is_ok());
}

#[test]
fn what_is_not_associative_is_refused_when_it_is_too_deep() {
    let state = SessionContext::new().state();
    for (between, operand) in [(" + ", ""), (" - ", ""), (" EXCEPT ", "SELECT "), (" UNION ALL BY NAME ", "SELECT ")] {
        for (count, fits) in [(MAX_DEPTH / 2, true), (20_000, false)] {
            let text = format!("SELECT {}", operands(count, between, |number| format!("{operand}{number}")));
            let text = text.replacen("SELECT SELECT", "SELECT", 1);
            let parsed = parse(&state, &text);
            assert_eq!(parsed.is_ok(), fits, "{count} times {between}");
            if let Err(error) = parsed {
                assert!(error.to_string().contains("levels deep"), "{error}");
            }
        }
    }
}

#[test]
fn the_body_of_a_recursive_expression_keeps_its_two_operands() {
    let chain = operands(100, " UNION ALL ", |number| format!("SELECT {number} AS a"));
    let text = format!("WITH RECURSIVE r AS ({chain} UNION ALL SELECT a + 1 FROM r WHERE a < 200) SELECT a FROM r");
    let Statement::Statement(statement) = parse(&SessionContext::new().state(), &text).unwrap().statement else {
        panic!()
    };
    let datafusion::sql::sqlparser::ast::Statement::Query(query) = *statement else { panic!() };
    let body = &query.with.unwrap().cte_tables[0].query.body;
    let datafusion::sql::sqlparser::ast::SetExpr::SetOperation { right, .. } = body.as_ref() else { panic!() };
    assert!(right.to_string().contains("FROM r"), "{right}");
}
