//! Tensor core instructions against plain loops.

use super::harness::{Random, Run};
use half::{bf16, f16};

/// Multiplies 16 x k by k x 8 with one `mma.sync`, fragments loaded element by element as the PTX ISA's figures have them; a row-major, b
/// column-major.
fn product(k: usize, kind: &str) -> String {
    let mut body = String::from(
        "shr.u32 %r2, %r1, 2; and.b32 %r3, %r1, 3; shl.b32 %r3, %r3, 1;
        add.u64 %rd10, %rd1, 0;",
    );
    // Bytes: a at 0, b behind it, c behind that.
    let (b, c) = (16 * k * 2, 16 * k * 2 + 8 * k * 2);
    let half = |register: String, row: String, column: String, width: usize, base: usize| {
        format!(
            "mad.lo.s32 %r5, {row}, {width}, {column}; mul.wide.u32 %rd11, %r5, 2; add.s64 %rd11, %rd10, %rd11;
            ld.global.b32 {register}, [%rd11+{base}];\n"
        )
    };
    for n in 0..k / 4 {
        let (row, column) = (8 * (n % 2), 8 * (n / 2));
        body += &format!("add.s32 %r6, %r2, {row}; add.s32 %r7, %r3, {column};");
        body += &half(format!("%r{}", 10 + n), "%r6".into(), "%r7".into(), k, 0);
    }
    for n in 0..k / 8 {
        body += &format!("add.s32 %r7, %r3, {};", 8 * n);
        body += &half(format!("%r{}", 20 + n), "%r2".into(), "%r7".into(), k, b);
    }
    let sums = |n: usize| {
        format!("add.s32 %r6, %r2, {}; mad.lo.s32 %r5, %r6, 8, %r3; mul.wide.u32 %rd11, %r5, 4;", 8 * n)
    };
    for n in 0..2 {
        body += &sums(n);
        body += &format!(
            "add.s64 %rd11, %rd10, %rd11; ld.global.v2.b32 {{%r{}, %r{}}}, [%rd11+{c}];\n",
            30 + 2 * n,
            31 + 2 * n
        );
    }
    let list = |from: usize, count: usize| {
        (from..from + count).map(|n| format!("%r{n}")).collect::<Vec<_>>().join(", ")
    };
    body += &format!(
        "mma.sync.aligned.m16n8k{k}.row.col.f32.{kind}.{kind}.f32 {{{}}}, {{{}}}, {{{}}}, {{{}}};\n",
        list(40, 4),
        list(10, k / 4),
        list(20, k / 8),
        list(30, 4)
    );
    for n in 0..2 {
        body += &sums(n);
        body += &format!(
            "add.s64 %rd11, %rd2, %rd11; st.global.v2.b32 [%rd11], {{%r{}, %r{}}};\n",
            40 + 2 * n,
            41 + 2 * n
        );
    }
    body
}

#[test]
fn products_are_those_of_plain_loops() {
    for (k, kind) in [(16, "bf16"), (16, "f16"), (8, "bf16"), (8, "f16")] {
        let mut random = Random(k as u64);
        // Small integers: every sum is exact.
        let mut draw = |n: usize| (0..n).map(|_| (random.next() % 17) as f32 - 8.0).collect::<Vec<_>>();
        let (a, b, c) = (draw(16 * k), draw(8 * k), draw(16 * 8));
        let mut input = Vec::new();
        for &x in a.iter().chain(&b) {
            let bits = if kind == "f16" { f16::from_f32(x).to_bits() } else { bf16::from_f32(x).to_bits() };
            input.extend(bits.to_le_bytes());
        }
        input.extend(c.iter().flat_map(|x| x.to_le_bytes()));
        let out = Run::new(&product(k, kind), 32).bytes(&input, 16 * 8 * 4).unwrap();
        for row in 0..16 {
            for column in 0..8 {
                let at = row * 8 + column;
                let got = f32::from_le_bytes(out[4 * at..][..4].try_into().unwrap());
                let want = (0..k).map(|i| a[row * k + i] * b[column * k + i]).sum::<f32>() + c[at];
                assert_eq!(got, want, "{kind} k{k} row {row} column {column}");
            }
        }
    }
}

/// Fills shared memory with the numbers of its halves, loads matrices whose row r lies at 16 r bytes, and stores what each lane gets.
fn load(count: usize, transposed: bool) -> Vec<u16> {
    let list = (10..10 + count).map(|n| format!("%r{n}")).collect::<Vec<_>>().join(", ");
    let trans = if transposed { ".trans" } else { "" };
    let mut body = format!(
        "mov.u32 %r2, dyn; shl.b32 %r3, %r1, 4; add.u32 %r4, %r2, %r3; shl.b32 %r5, %r1, 3;
        cvt.u16.u32 %rs1, %r5; add.u16 %rs2, %rs1, 1; add.u16 %rs3, %rs1, 2; add.u16 %rs4, %rs1, 3;
        add.u16 %rs5, %rs1, 4; add.u16 %rs6, %rs1, 5; add.u16 %rs7, %rs1, 6; add.u16 %rs8, %rs1, 7;
        st.shared.v4.b16 [%r4], {{%rs1, %rs2, %rs3, %rs4}}; st.shared.v4.b16 [%r4+8], {{%rs5, %rs6, %rs7, %rs8}};
        bar.sync 0;
        ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{list}}}, [%r4];
        mul.wide.u32 %rd10, %r1, {}; add.s64 %rd10, %rd2, %rd10;",
        4 * count
    );
    for n in 0..count {
        body += &format!("st.global.b32 [%rd10+{}], %r{};", 4 * n, 10 + n);
    }
    let out = Run::new(&body, 32).bytes(&[], 32 * 4 * count as u64).unwrap();
    out.chunks(2).map(|x| u16::from_le_bytes([x[0], x[1]])).collect()
}

#[test]
fn matrices_are_loaded_by_rows_or_columns() {
    for (count, transposed) in [(1, false), (2, false), (4, false), (1, true), (4, true)] {
        let got = load(count, transposed);
        for lane in 0..32 {
            for matrix in 0..count {
                for element in 0..2 {
                    let (mut row, mut column) = (lane / 4, lane % 4 * 2 + element);
                    if transposed {
                        (row, column) = (column, row);
                    }
                    let want = (8 * matrix + row) * 8 + column;
                    let at = (lane * count + matrix) * 2 + element;
                    assert_eq!(usize::from(got[at]), want, "x{count} lane {lane} matrix {matrix}");
                }
            }
        }
    }
}

#[test]
fn poison_taints_its_rows_and_columns_only() {
    // Row 3 of a has one element that was never written: only row 3 of the product is poison.
    let body = "shr.u32 %r2, %r1, 2; setp.eq.u32 %p1, %r1, 13; mov.b32 %r20, 0; @%p1 bra SKIP; mov.b32 %r10, 0;
        SKIP: mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r40, %r41, %r42, %r43},
            {%r10, %r20, %r20, %r20}, {%r20, %r20}, {%r20, %r20, %r20, %r20};
        mul.wide.u32 %rd10, %r1, 16; add.s64 %rd10, %rd2, %rd10; st.global.v4.b32 [%rd10], {%r40, %r41, %r42, %r43};";
    let fault = Run::new(body, 32).bytes(&[], 512).unwrap_err().what;
    assert!(fault.contains(&format!("offset {} of", 12 * 16)), "{fault}");
    let body = format!("{body} setp.eq.u32 %p2, %r2, 3; @%p2 st.global.v2.b32 [%rd10], {{%r20, %r20}};");
    assert!(Run::new(&body, 32).bytes(&[], 512).is_ok());
}
