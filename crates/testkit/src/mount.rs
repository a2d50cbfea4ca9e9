//! How does a test get a file system that is full, small, read-only, or of another kind? It mounts
//! one on a directory of its own, which takes root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file system that is taken away when this is dropped.
#[derive(Debug)]
pub struct Mount(PathBuf);

impl Mount {
    /// Mounts a tmpfs on a new directory, with options as `size=4M,mode=755`.
    ///
    /// # Panics
    /// If the directory is there already, or nothing may be mounted.
    pub fn tmpfs(at: &Path, options: &str) -> Self {
        Self::on(at, &["-t", "tmpfs", "-o", options, "tapdeck-test"])
    }

    /// Mounts a BPF file system on a new directory.
    ///
    /// # Panics
    /// As [`Mount::tmpfs`].
    pub fn bpf(at: &Path) -> Self {
        Self::on(at, &["-t", "bpf", "tapdeck-test"])
    }

    /// Makes a file system of a kind (`ext4` or `xfs`) in a file below a directory, and mounts it
    /// beside that, on a directory that is called as the kind.
    ///
    /// # Panics
    /// As [`Mount::tmpfs`], or if there is no `mkfs` of the kind.
    pub fn image(dir: &Path, kind: &str, mebibytes: u64) -> Self {
        let image = dir.join(format!("{kind}.img"));
        let file = fs::File::create(&image).expect("a new file");
        file.set_len(mebibytes << 20).expect("a sparse file");
        let quiet = if kind == "ext4" { "-Fq" } else { "-fq" };
        let made = Command::new(format!("mkfs.{kind}")).arg(quiet).arg(&image).status();
        assert!(made.is_ok_and(|status| status.success()), "mkfs.{kind}: make setup");
        Self::on(&dir.join(kind), &["-o", "loop", image.to_str().expect("a path of letters")])
    }

    fn on(at: &Path, words: &[&str]) -> Self {
        fs::create_dir(at).expect("a new directory");
        mount(at, words);
        Self(at.to_owned())
    }

    /// Lets nobody write there from now on.
    ///
    /// # Panics
    /// If that may not be done.
    pub fn make_read_only(&self) {
        mount(&self.0, &["-o", "remount,ro"]);
    }

    /// Gives a tmpfs other options, as `size=8M`.
    ///
    /// # Panics
    /// If that may not be done.
    pub fn remount(&self, options: &str) {
        mount(&self.0, &["-o", &format!("remount,{options}")]);
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

fn mount(at: &Path, words: &[&str]) {
    let status = Command::new("mount").args(words).arg(at).status();
    assert!(status.is_ok_and(|status| status.success()), "root may mount: {words:?}");
}
