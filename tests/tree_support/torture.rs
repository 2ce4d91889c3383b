//! A small tree with everything that programs get wrong.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use super::shell;

/// Makes it in an empty directory. Needs root.
pub fn make(top: &Path) {
    let raw = |name: &[u8]| top.join(std::ffi::OsStr::from_bytes(name));
    fs::create_dir_all(top.join("usr/lib/deep")).unwrap();
    fs::write(raw(b"not-utf8-\xff\xfe"), "bytes").unwrap();
    fs::write(raw(b"new\nline"), "").unwrap();
    fs::write(top.join("n".repeat(255)), "long name").unwrap();
    let deep = top
        .join("d".repeat(120))
        .join("e".repeat(120))
        .join("f".repeat(120));
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("file"), "long path").unwrap();
    std::os::unix::fs::symlink("t".repeat(300), top.join("long-link")).unwrap();
    fs::write(top.join("large"), vec![b'L'; 3_000_001]).unwrap();
    fs::write(top.join("usr/lib/libc.so"), "libc").unwrap();
    sparse(top);
    shell(SCRIPT, top);
}

fn sparse(top: &Path) {
    let file = |name: &str| fs::File::create(top.join(name)).unwrap();
    let block = vec![b's'; 4096];
    let front = file("sparse-hole-in-front");
    front.write_all_at(&block, 10 << 20).unwrap();
    let behind = file("sparse-hole-behind");
    behind.write_all_at(&block, 0).unwrap();
    behind.set_len(5 << 20).unwrap();
    file("sparse-only-a-hole").set_len(3 << 20).unwrap();
    let odd = file("sparse-odd");
    odd.write_all_at(b"odd", (1 << 20) + 1).unwrap();
    // More pieces than a header and one block after it hold.
    let many = file("sparse-many");
    for n in 0..80u64 {
        many.write_all_at(&block, n * 65536).unwrap();
    }
    let large = file("sparse-9-gigabytes");
    large.write_all_at(&block, 0).unwrap();
    large.write_all_at(&block, (9 << 30) - 4096).unwrap();
}

const SCRIPT: &str = r"
echo suid >suid; chown 12:34 suid; chmod 6755 suid
mkdir sgid sticky closed empty; chown 0:50 sgid; chmod 2775 sgid; chmod 1777 sticky
echo in >sgid/in; mkdir sgid/sub; chmod 0755 sgid/sub; chmod g-s sgid/sub
echo closed >closed/file; chmod 0000 closed/file; chmod 0000 closed
echo big >big-ids; chown 3000000000:4294967294 big-ids
: >zero
ln large large-2; ln large usr/lib/large-3
ln -s /etc/passwd absolute; ln -s nowhere dangling; ln -s usr/lib lib
ln dangling dangling-2; chown -h 7:8 dangling
mkfifo fifo; chmod 0620 fifo
mknod null c 1 3; chmod 0666 null; mknod loop b 7 200; mknod whiteout c 0 0; mknod high c 4095 1048575
chown 5:6 null
setfattr -n user.plain -v text zero
setfattr -n user.binary -v 0x0a3d250a00ff0a large
setfattr -n user.empty zero
setfattr -n 'user.a=b%3Dc%d' -v odd zero
setfattr -n user.dir -v on-a-directory usr/lib/deep
setfattr -n trusted.overlay.opaque -v y usr/lib
setfattr -n trusted.on-a-file -v y zero
setfattr -h -n security.ironroot -v on-a-link absolute
setfattr -n security.ironroot -v on-a-device null
setfattr -n security.ironroot -v on-a-fifo fifo
# cap_net_raw+ep, with a newline in it that means nothing to the kernel's version 2.
setfattr -n security.capability -v 0x0100000200200a00000000000000000000000000 suid
setfacl -m u:4242:rw-,g:4243:r--,m::rw- big-ids
mkdir acl; setfacl -m u:4242:rwx acl; setfacl -d -m u:4242:rwx,g:4243:--- acl
echo plain >acl/inherits; setfacl -b acl/inherits; chmod 0640 acl/inherits
mkdir acl/sub; setfacl -b -k acl/sub; chmod 0750 acl/sub
echo keeps >acl/keeps; ln -s inherits acl/link; mknod acl/device c 1 5
touch -h -d '2001-02-03 04:05:06.123456789' dangling absolute fifo null zero
touch -d '1965-01-01 00:00:00.5' suid
touch -d '2500-01-01 00:00:00.999999999' large
touch -d '2020-01-01 00:00:00.000000001' usr/lib/deep acl sgid empty usr
touch -d '@0' .
";
