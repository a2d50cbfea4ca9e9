//! Compiles the hook programs with clang, and the ring's arithmetic for user space.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    println!("cargo::rerun-if-changed=bpf");

    // asm/types.h lies in the multiarch directory on Debian, where clang does not
    // look when it compiles for BPF.
    let multiarch = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .arg("-print-multiarch")
        .output()
        .ok()
        .and_then(|o| String::from_utf8(o.stdout).ok())
        .map(|s| format!("/usr/include/{}", s.trim()))
        .unwrap_or_default();
    for program in [
        "record",
        "record_cutoff",
        "record_rules",
        "serve",
        "socket",
        "transmit",
        "generate",
        "headers_test",
        "filter_test",
        "filter_socket_test",
        "rules_test",
        "trial",
    ] {
        let source = format!("bpf/{program}.bpf.c");
        libbpf_cargo::SkeletonBuilder::new()
            .source(&source)
            .obj(out.join(format!("{program}.bpf.o")))
            .clang_args(["-mcpu=v3", "-Wall", "-Werror", "-idirafter", &multiarch])
            .build()
            .unwrap_or_else(|e| panic!("{source} does not compile (is clang installed?): {e:#}"));
    }
    cc::Build::new()
        .file("bpf/ring_user.c")
        .file("bpf/serve_user.c")
        .file("bpf/generate_user.c")
        .compile("tapdeck_ring");
    cc::Build::new()
        .file("bpf/headers_user.c")
        .flag_if_supported("-Wno-unused-parameter")
        .compile("tapdeck_headers");
    // An image is bytes that are read as what stands there.
    cc::Build::new()
        .file("bpf/rules_user.c")
        .flag("-fno-strict-aliasing")
        .opt_level(2)
        .compile("tapdeck_rules");
}
