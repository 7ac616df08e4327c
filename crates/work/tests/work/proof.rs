//! The proof, and that it finds what is wrong.

use selvage_work::testing::{Violation, check};

use crate::support::{Proving, Shop, Wrong, memory};

async fn prove(wrong: Option<Wrong>) -> Result<Vec<String>, Violation> {
    check(|| async move { Proving { shop: Shop { wrong, ..Shop::new() }, store: memory().await } })
        .await
}

#[tokio::test]
async fn a_good_operation_passes() {
    let cases = prove(None).await.unwrap();
    // Seven for each of three steps, four for each undo of 1 + 2 + 3 steps.
    assert_eq!(cases.len(), 1 + 3 * 7 + 6 * 4, "{cases:#?}");
    assert!(cases.iter().any(|case| case == "crash after step create"));
    let both = "failure after step publish, then crash after undo of step reserve";
    assert!(cases.iter().any(|case| case == both));
}

#[tokio::test]
async fn a_step_that_takes_something_new_each_time_is_found() {
    let violation = prove(Some(Wrong::ReservesAnew)).await.unwrap_err();
    assert_eq!(violation.case, "repeat of step reserve");
}

#[tokio::test]
async fn a_step_that_cannot_be_repeated_is_found() {
    let violation = prove(Some(Wrong::CreatesOnce)).await.unwrap_err();
    assert_eq!(violation.case, "repeat of step create");
}

#[tokio::test]
async fn an_undo_that_forgets_is_found() {
    let violation = prove(Some(Wrong::ForgetsToUndo)).await.unwrap_err();
    assert!(violation.case.ends_with("step create"), "{violation}");
    assert!(violation.detail.contains("lamp"), "{violation}");
}

#[tokio::test]
async fn an_undo_that_cannot_be_repeated_is_found() {
    let violation = prove(Some(Wrong::UndoesOnce)).await.unwrap_err();
    assert!(violation.detail.contains("nothing to undo"), "{violation}");
}
