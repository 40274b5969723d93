//! A disk that is full when a test wants it to be.

use std::path::Path;
use std::process::Command;

/// A file system of a few megabytes that is gone when this is dropped.
pub struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    pub fn mount(megabytes: u32) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let size = format!("size={megabytes}m");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(dir.path()).status();
        assert!(
            mounted.is_ok_and(|status| status.success()),
            "this test needs a small tmpfs: run it as root, or with the capability to mount (in a container, \
             --cap-add SYS_ADMIN)"
        );
        Self(dir)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Takes all the room there is until the file is removed.
    pub fn fill(&self) -> Ballast {
        let path = self.path().join("ballast");
        let mut file = std::fs::File::create(&path).expect("create");
        let block = [0; 1024];
        while std::io::Write::write_all(&mut file, &block).is_ok() {}
        Ballast(path)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

pub struct Ballast(std::path::PathBuf);

impl Drop for Ballast {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).expect("remove");
    }
}
