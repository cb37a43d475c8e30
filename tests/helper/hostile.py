#!/usr/bin/env python3
"""Makes hostile archives and JSON Lines in the present folder: the same bytes every time. tests/e2e/hostile.bats says
what becomes of each. Nothing here is unpacked by anyone; the names that lead out of the folder are only names."""
import bz2
import gzip
import io
import lzma
import struct
import tarfile
import zipfile
import zlib

TIME = (1980, 1, 1, 0, 0, 0)


def put(name, data):
    with open(name, "wb") as f:
        f.write(data)


def tar_of(members, form=tarfile.GNU_FORMAT):
    """members: (name, bytes) or (name, type, link) or a ready TarInfo."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as t:
        for m in members:
            info = tarfile.TarInfo(m[0])
            if len(m) == 2:
                info.size = len(m[1])
                t.addfile(info, io.BytesIO(m[1]))
            else:
                info.type, info.linkname = m[1], m[2]
                t.addfile(info)
    return out.getvalue()


def zip_of(members, method=zipfile.ZIP_STORED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as z:
        for name, data in members:
            info = zipfile.ZipInfo(name, TIME)
            info.compress_type = method
            info.external_attr = 0o100644 << 16
            z.writestr(info, data)
    return out.getvalue()


def gz(data):
    return gzip.compress(data, 9, mtime=0)


def flag_encrypted(data):
    """Sets bit 0 of the flags in the local and central headers of a zip."""
    b = bytearray(data)
    for magic, at in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        i = b.find(magic)
        while i >= 0:
            b[i + at] |= 1
            i = b.find(magic, i + 4)
    return bytes(b)


def zeros_gz(n):
    """n zero-like bytes behind gzip without holding them."""
    c = zlib.compressobj(9, zlib.DEFLATED, 31)
    out = b""
    block = b"a" * (1 << 20)
    while n > 0:
        out += c.compress(block[: min(n, len(block))])
        n -= len(block)
    return out + c.flush()


def greedy_xz(data):
    """An xz file that asks for a dictionary of 4 GiB: the property byte of its LZMA2 filter, and the header's CRC."""
    b = bytearray(lzma.compress(data, lzma.FORMAT_XZ, lzma.CHECK_CRC32))
    size = (b[12] + 1) * 4
    at = b.index(b"\x21\x01", 12) + 2
    b[at] = 40
    b[12 + size - 4 : 12 + size] = struct.pack("<I", zlib.crc32(bytes(b[12 : 12 + size - 4])))
    return bytes(b)


def archives():
    text = b"a plain document\n"
    good = [("one.txt", b"first\n"), ("two.txt", b"second\n")]
    put("ratio.gz", zeros_gz(60 << 20))
    put("ratio.zip", zip_of([("big.txt", b"a" * (24 << 20))], zipfile.ZIP_DEFLATED))
    put("ratio.tar.xz", lzma.compress(tar_of([("big.txt", b"a" * (24 << 20))]), preset=0))
    put("ratio.tar.bz2", bz2.compress(tar_of([("big.txt", b"a" * (24 << 20))])))
    put("stored-lie.zip", zip_of([("big.txt", text)]).replace(struct.pack("<I", len(text)), struct.pack("<I", 0x7FFFFFFF)))
    put("greedy.xz", greedy_xz(text))
    put("traversal.tar", tar_of([("../../out.txt", text), ("a/../../out.txt", b"other\n"), ("/etc/passwd", b"absolute\n")]))
    put("traversal.zip", zip_of([("../out.txt", text), ("/abs.txt", b"absolute\n"), ("..\\win.txt", b"back\n")]))
    put("links.tar", tar_of([
        ("target", text), ("sym", tarfile.SYMTYPE, "/etc/passwd"), ("hard", tarfile.LNKTYPE, "target"),
        ("fifo", tarfile.FIFOTYPE, ""), ("dev", tarfile.CHRTYPE, ""), ("sym/inner", b"behind a link\n")]))
    put("encrypted.zip", flag_encrypted(zip_of([("secret.txt", text)])))
    put("truncated.tar", tar_of(good)[:700])
    put("truncated.zip", zip_of(good)[:60])
    put("truncated.tar.gz", gz(tar_of([("t.txt", bytes(range(33, 127)) * 200)]))[:120])
    put("nested.tar", tar_of([("in.tar", tar_of(good)), ("in.gz", gz(text)), ("in.zip", zip_of(good)), ("ok.txt", text)]))
    put("many.zip", zip_of([("d/%05d.txt" % i, b"%d\n" % i) for i in range(5000)]))
    put("empty.tar", b"\0" * 10240)
    put("empty.tar.gz", gz(b"\0" * 10240))
    put("empty.zip", zip_of([]))
    put("duplicate.tar", tar_of([("same.txt", b"one\n"), ("same.txt", b"two\n")]))
    put("names.tar", tar_of([("caf\udce9.txt", text), ("new\nline.txt", b"two\n"), ("esc\x1b[2J.txt", b"three\n")]))
    put("long-name.tar", tar_of([("d/" * 3000 + "deep.txt", text)]))
    pax = tarfile.TarInfo("huge.txt")
    pax.pax_headers = {"comment": "x" * (9 << 20)}
    pax.size = len(text)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as t:
        t.addfile(pax, io.BytesIO(text))
    put("huge-header.tar", out.getvalue())
    put("sparse.tar", sparse_tar(1 << 40, b"at the end\n"))
    header = bytearray(tar_of([("lie.txt", text)])[:512])
    header[124:136] = b"77777777777\0"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    put("size-lie.tar", bytes(header) + text)


def sparse_tar(size, tail):
    """An old GNU sparse member: one block of data at the end of size bytes of nothing."""
    h = bytearray(512)
    h[0:10] = b"sparse.txt"
    h[100:108] = b"0000644\0"
    h[108:116] = h[116:124] = b"0000000\0"
    h[124:136] = b"%011o\0" % len(tail)
    h[136:148] = b"00000000000\0"
    h[156:157] = b"S"
    h[257:265] = b"ustar  \0"
    big = lambda n: b"\x80" + n.to_bytes(11, "big")
    h[386:398] = big(size - len(tail))
    h[398:410] = b"%011o\0" % len(tail)
    h[483:495] = big(size)
    h[148:156] = b" " * 8
    h[148:156] = b"%06o\0 " % sum(h)
    return bytes(h) + tail.ljust(512, b"\0") + b"\0" * 1024


def lines():
    put("odd.jsonl", b"".join((
        b'\xef\xbb\xbf{"id":"bom","text":"after a mark"}\r\n',  # 1
        b'{"id":"crlf","text":"line ends\\r\\nstay"}\r\n',  # 2
        b"\n", b" \t\r\n",  # 3, 4
        b'{"id":"nul","text":"a\\u0000b"}\n',  # 5
        b'{"id":"a\\u0000b","text":"x"}\n',  # 6
        b'{"id":"raw\0nul","text":"x"}\n',  # 7
        b'{"id":"no text"}\n',  # 8
        b'{"text":"no id"}\n',  # 9
        b'{"id":7,"text":"number id"}\n',  # 10
        b'{"id":["x"],"text":"odd id"}\n',  # 11
        b'{"id":"d","text":"first","text":"second"}\n',  # 12
        b'{"id":"s","text":"lone \\ud800 surrogate"}\n',  # 13
        b'{"id":"deep","text":"x","more":' + b"[" * 200 + b"]" * 200 + b"}\n",  # 14
        b'{"id":"t","text":5}\n', b'{"id":"t","text":null}\n', b'["text"]\n', b'"text"\n', b"text\n",  # 15-19
        b'{"id":"e","text":""}\n',  # 20
        b'{"id":"u","text":"bad \xff byte"}\n',  # 21
        b'{"id":"trail","text":"x"} {}\n',  # 22
        b'{"id":"big","text":"x","n":1' + b"0" * 400 + b"}\n",  # 23
        b'{"id":"last","text":"no line end"}')))  # 24
    put("bom-first.jsonl", b"\xef\xbb\xbf\n")
    with open("long.jsonl", "wb") as f:
        f.write(b'{"id":"before","text":"x"}\n{"id":"long","text":"')
        for _ in range(100):
            f.write(b"a" * 1000000)
        f.write(b'"}\n{"id":"after","text":"y"}\n')


archives()
lines()
