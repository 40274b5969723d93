//! What is refused when the engine is opened.

use drone_delivery::stream::embedded::{self, OpenError, Settings};

use super::{open, settings};

#[tokio::test]
async fn a_directory_in_use_is_refused_until_it_is_free() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = open(dir.path()).expect("open");
    let refused = open(dir.path()).err().expect("it is in use");
    assert!(matches!(refused, OpenError::InUse(_)), "{refused}");
    assert!(refused.to_string().contains("another process"), "{refused}");
    drop(engine);
    open(dir.path()).expect("it is free again");
}

#[tokio::test]
async fn another_number_of_partitions_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    drop(open(dir.path()).expect("open"));
    let refused = embedded::open(&Settings { partitions: 3, ..settings(dir.path()) }).err().expect("another count");
    assert!(matches!(refused, OpenError::OtherPartitions { found: 2, wanted: 3, .. }), "{refused}");
    open(dir.path()).expect("nothing was changed");
}

#[tokio::test]
async fn data_without_its_layout_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    drop(open(dir.path()).expect("open"));
    let layout = dir.path().join("data/layout");
    for content in [None, Some("")] {
        std::fs::remove_file(&layout).expect("remove");
        if let Some(content) = content {
            std::fs::write(&layout, content).expect("write");
        }
        let refused = open(dir.path()).err().expect("nobody knows how it is laid out");
        assert!(matches!(refused, OpenError::Layout { .. }), "{refused}");
        std::fs::write(&layout, "").expect("write");
    }
    std::fs::write(&layout, "{\"format\":1,\"partitions\":2}").expect("write");
    let refused = open(dir.path()).err().expect("it is of another version");
    assert!(matches!(refused, OpenError::OtherFormat { found: 1, .. }), "{refused}");
}
