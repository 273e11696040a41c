use cuattn_core::{DType, EngineId, Operand, Reason, Refusal, ScoreModFault};

#[test]
fn who_refuses_comes_first() {
    let reason = || vec![Reason::unsupported("handing out scores", "flash", "use phase2a, which keeps them")];
    insta::assert_snapshot!(Refusal::by_engine(EngineId::Flash, reason()), @r"
    flash refuses:
      * flash does not do handing out scores: use phase2a, which keeps them
    ");
    insta::assert_snapshot!(Refusal::by_path(EngineId::Flash, "mma", reason()), @r"
    flash (mma) refuses:
      * flash does not do handing out scores: use phase2a, which keeps them
    ");
    insta::assert_snapshot!(Refusal::from(reason().remove(0)), @r"
    refused:
      * flash does not do handing out scores: use phase2a, which keeps them
    ");
}

/// Every text, so that a change of one is seen. Each says what, why, and how to fix it.
#[test]
fn texts() {
    let (by, instead) = (|| "flash".to_string(), || "use phase2a".to_string());
    let fix = "make it that, or 1 to use one plane for all";
    let reasons = vec![
        Reason::HeadsNotDivisible { q_heads: 9, kv_heads: 2 },
        Reason::ZeroHeadDim { which: "v_head_dim" },
        Reason::NegativeStride { operand: Operand::K, dimension: "row", stride: -8 },
        Reason::StrideOverflow { operand: Operand::V },
        Reason::OverlappingOutput { operand: Operand::O, dimension: "head", stride: 64, span: 128 },
        Reason::BiasDoesNotBroadcast { dims: [2, 3, 5, 7], dimension: "head", got: 3, want: 6, fix },
        Reason::WrongDType { operand: Operand::Bias, got: DType::F16, want: DType::Bf16 },
        Reason::BadSoftcap { softcap: -1.0 },
        Reason::BadScale { scale: f32::INFINITY },
        Reason::BadScoreMod { fault: ScoreModFault::Empty },
        Reason::BadScoreMod { fault: ScoreModFault::Nul },
        Reason::BadScoreMod { fault: ScoreModFault::NoReturn },
        Reason::TooManyScoreModBuffers { buffers: 5, most: 4 },
        Reason::ScoreModNotOnHost,
        Reason::ZeroPageSize,
        Reason::PageTableTooNarrow { page_size: 16, max_pages: 4, kv_len: 65 },
        Reason::PageOutOfRange { sequence: 1, column: 2, page: -1, pages: 64 },
        Reason::TokensWithoutSequences { total_q: 10 },
        Reason::OperandMissing { operand: Operand::KeyLengths },
        Reason::OperandUnexpected { operand: Operand::ScoreModBuffer(2) },
        Reason::OperandTooSmall { operand: Operand::Q, need: 384, got: 383 },
        Reason::OperandMisaligned { operand: Operand::CuSeqlensQ, address: 0x7f00_0002, align: 4 },
        Reason::OutputOverlaps { output: Operand::O, other: Operand::Q },
        Reason::WorkspaceTooSmall { need: 512, got: 0 },
        Reason::WorkspaceMisaligned { address: 0x7f00_0010, align: 256 },
        Reason::SizeOverflow { what: "scores" },
        Reason::OutOfHostMemory { bytes: 1 << 50 },
        Reason::unsupported("handing out scores", by(), instead()),
        Reason::ArchUnsupported { by: by(), need: "8.0 or newer".into(), got: (7, 5), instead: instead() },
        Reason::SharedMemory { by: by(), need: 233_472, got: 101_376, instead: instead() },
        Reason::TooLarge { what: "head_dim".into(), got: 1024, by: by(), limit: 512, instead: instead() },
        Reason::Missing { by: "phase2a".into(), what: "cuBLASLt".into(), fix: "pip install nvidia-cublas".into() },
        Reason::EntryCount { operand: Operand::CuSeqlensKv, need: 4, got: 3 },
        Reason::FirstOffsetNotZero { operand: Operand::CuSeqlensQ, got: 1 },
        Reason::OffsetsDecrease { operand: Operand::CuSeqlensQ, index: 2, before: 6, after: 5 },
        Reason::LastOffsetNotTotal { operand: Operand::CuSeqlensKv, got: 9, total: 10 },
        Reason::LengthAboveMaximum { operand: Operand::CuSeqlensQ, sequence: 2, length: 7, max: 6 },
        Reason::UsedLengthOutOfRange { sequence: 0, used: 9, span: 8 },
    ];
    let refusal = Refusal { engine: None, path: None, reasons };
    insta::assert_snapshot!(refusal, @r"
    refused:
      * q_heads 9 is not a multiple of kv_heads 2: every key head must serve the same number of query heads; check that the two are not swapped, or repeat key heads until they divide
      * v_head_dim is 0: there is nothing to multiply; give the number of elements of one vector, at least 1
      * the row stride of k is -8: strides must not be negative; point at the lowest element and use the order of memory
      * v would end beyond 2^63 bytes after its first element: its extents times its strides overflow; strides are in elements, not bytes
      * the head stride of o is 64, and what it steps over is 128 elements long: rows of an output must not overlap; make this stride at least 128
      * the bias has 3 along its head dimension, where the problem has 6: a bias of [2, 3, 5, 7] does not broadcast to [batch, q_heads, q_len, kv_len]; make it that, or 1 to use one plane for all
      * bias is f16: it must be bf16, the type of q, or f32; convert it
      * softcap -1 is not a positive finite number: scores become softcap * tanh(score / softcap); use None for no cap
      * scale inf is not a finite number: every score would be lost; the usual one is 1 / sqrt(head_dim)
      * the score modification is empty: it must be the body of a function, such as `return score - 0.5f * (q - k);`
      * the score modification holds a NUL byte, where the compiler would stop reading: it must be the body of a function, such as `return score - 0.5f * (q - k);`
      * the score modification never returns a score: it must be the body of a function, such as `return score - 0.5f * (q - k);`
      * the score modification asks for 5 buffers, and there are at most 4: put several arrays in one buffer
      * the problem has a score modification, which is CUDA text that the host cannot run: give the host reference the same function as a closure
      * page_size is 0: a page must hold at least one row
      * 4 pages of 16 rows hold 64 keys, and a sequence may have 65: give the table more columns, or lower the longest key length
      * page_table[1][2] is -1, and the pool has 64 pages: entries up to a sequence's length must be page numbers from 0
      * there are 10 query tokens but no sequence (batch is 0): no token would be written; set batch, or no tokens
      * key_lengths is missing: the problem asks for it; give its pointer, or change the problem
      * score_mod_buffers[2] was given, but the problem does not ask for it and it would be ignored; leave it out, or change the problem
      * q is 383 bytes long and 384 are needed: check its extents and strides, which count elements, not bytes
      * cu_seqlens_q starts at 0x7f000002, which is not a multiple of 4: an element would straddle words; align it
      * o overlaps q in memory: it would be overwritten while it is read; give o memory of its own
      * the workspace is 0 bytes long and 512 are needed: allocate what the plan's workspace() says
      * the workspace starts at 0x7f000010, which is not a multiple of 256: align it
      * the size of scores overflows: the problem is too large for any memory; split it along the batch or the heads
      * the host reference needs 1125899906842624 bytes for its output and cannot have them: ask for fewer rows, or not for the scores
      * flash does not do handing out scores: use phase2a
      * flash needs compute capability 8.0 or newer, and this device has 7.5: use phase2a
      * flash needs 233472 bytes of shared memory a block, and this device has 101376: use phase2a
      * head_dim is 1024, and flash goes up to 512: use phase2a
      * phase2a cannot run here: cuBLASLt is missing; pip install nvidia-cublas
      * cu_seqlens_kv has 3 entries and must have 4: offsets have one more than there are sequences, lengths as many
      * cu_seqlens_q[0] is 1: the first sequence starts at token 0; offsets are a running sum of lengths that starts with 0
      * cu_seqlens_q[2] is 5, less than 6 before it: sequence 1 would have a negative length; offsets are a running sum of lengths
      * the last entry of cu_seqlens_kv is 9, and there are 10 tokens: it must be the token count of the packed tensor
      * sequence 2 of cu_seqlens_q has 7 tokens, more than the stated maximum of 6: raise the maximum
      * used_lengths[0] is 9, and the sequence has room for 8 keys: it must be from 0 to 8
    ");
}
