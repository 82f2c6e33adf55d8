target triple = "nvptx64-nvidia-cuda"
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare float @llvm.maxnum.f32(float,float)
declare float @llvm.maximum.f32(float,float)
declare <2 x float> @llvm.fma.v2f32(<2 x float>,<2 x float>,<2 x float>)
declare <2 x half> @llvm.maxnum.v2f16(<2 x half>,<2 x half>)
declare <2 x half> @llvm.fma.v2f16(<2 x half>,<2 x half>,<2 x half>)
declare half @llvm.sqrt.f16(half)
declare half @llvm.floor.f16(half)
declare bfloat @llvm.fma.bf16(bfloat,bfloat,bfloat)
declare bfloat @llvm.fabs.bf16(bfloat)
declare bfloat @llvm.maxnum.bf16(bfloat,bfloat)
declare i32 @llvm.umin.i32(i32,i32)
declare i16 @llvm.smax.i16(i16,i16)
declare i32 @llvm.abs.i32(i32,i1)
declare i64 @llvm.ctlz.i64(i64,i1)
declare i32 @llvm.cttz.i32(i32,i1)
declare i32 @llvm.bitreverse.i32(i32)
declare i32 @llvm.uadd.sat.i32(i32,i32)
declare i32 @llvm.sadd.sat.i32(i32,i32)
declare i1 @llvm.is.fpclass.f32(float, i32)
declare i32 @llvm.nvvm.redux.sync.add(i32,i32)
declare i1 @llvm.nvvm.vote.any.sync(i32,i1)
declare i32 @llvm.nvvm.vote.ballot.sync(i32,i1)
declare {i32,i1} @llvm.nvvm.shfl.sync.down.i32p(i32,i32,i32,i32)
declare i32 @llvm.nvvm.match.any.sync.i32(i32,i32)
declare i32 @llvm.nvvm.activemask()
declare void @llvm.nvvm.bar.warp.sync(i32)
declare void @llvm.nvvm.membar.gl()
declare void @llvm.trap()
declare float @llvm.round.f32(float)
declare float @llvm.roundeven.f32(float)
declare float @llvm.ceil.f32(float)
declare float @llvm.minimum.f32(float,float)
declare float @llvm.tanh.f32(float)
declare float @llvm.nvvm.rcp.approx.ftz.f(float)
declare float @llvm.nvvm.sin.approx.f(float)
declare float @llvm.nvvm.div.approx.f(float,float)
declare float @llvm.nvvm.div.full(float,float)
declare i32 @llvm.nvvm.prmt(i32,i32,i32)
declare <2 x bfloat> @llvm.nvvm.ff2bf16x2.rn(float,float)
declare i32 @llvm.vector.reduce.add.v4i32(<4 x i32>)
declare float @llvm.vector.reduce.fmax.v8f32(<8 x float>)
declare float @llvm.vector.reduce.fadd.v8f32(float, <8 x float>)
define ptx_kernel void @k1(ptr addrspace(1) align 32 %p, ptr addrspace(1) align 32 noalias %q, i64 %n, i32 %m, float %x, i1 %flag, i8 %b, i16 %s) {
  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %pa = getelementptr <8 x float>, ptr addrspace(1) %p, i32 %t
  %v = load <8 x float>, ptr addrspace(1) %pa, align 32
  %w = fmul <8 x float> %v, %v
  %w2 = fadd <8 x float> %w, %v
  %mx = call reassoc float @llvm.vector.reduce.fmax.v8f32(<8 x float> %w2)
  %ad = call reassoc float @llvm.vector.reduce.fadd.v8f32(float 0.0, <8 x float> %w)
  %sum = fadd float %mx, %ad
  %i0 = insertelement <8 x float> %w2, float %sum, i32 3
  %qa = getelementptr <8 x float>, ptr addrspace(1) %q, i32 %t
  store <8 x float> %i0, ptr addrspace(1) %qa, align 32
  %m1 = call float @llvm.maxnum.f32(float %x, float %sum)
  %m2 = call float @llvm.maxnum.f32(float %m1, float %mx)
  %m3 = call float @llvm.maximum.f32(float %m2, float %ad)
  %m4 = call float @llvm.minimum.f32(float %m3, float %x)
  %rd = call float @llvm.round.f32(float %m4)
  %re = call float @llvm.roundeven.f32(float %m4)
  %ce = call float @llvm.ceil.f32(float %m4)
  %r1 = fadd float %rd, %re
  %r2 = fadd float %r1, %ce
  store float %r2, ptr addrspace(1) %p
  %cl = call i1 @llvm.is.fpclass.f32(float %r2, i32 516)
  %cl2 = call i1 @llvm.is.fpclass.f32(float %r2, i32 3)
  %cc = or i1 %cl, %cl2
  %fl = and i1 %cc, %flag
  %z = zext i1 %fl to i32
  %bz = sext i8 %b to i32
  %sz = zext i16 %s to i32
  %a1 = add i32 %z, %bz
  %a2 = mul i32 %a1, %sz
  %a3 = call i32 @llvm.umin.i32(i32 %a2, i32 %m)
  %a4 = call i32 @llvm.abs.i32(i32 %a3, i1 false)
  %c1 = call i64 @llvm.ctlz.i64(i64 %n, i1 false)
  %c2 = call i32 @llvm.cttz.i32(i32 %a4, i1 false)
  %c3 = call i32 @llvm.bitreverse.i32(i32 %c2)
  %c4 = call i32 @llvm.uadd.sat.i32(i32 %c3, i32 %m)
  %c5 = call i32 @llvm.sadd.sat.i32(i32 %c4, i32 %a4)
  %c6 = trunc i64 %c1 to i32
  %c7 = add i32 %c5, %c6
  %sm = call i16 @llvm.smax.i16(i16 %s, i16 77)
  %smz = sext i16 %sm to i32
  %c8 = sdiv i32 %c7, %smz
  %c9 = srem i32 %c8, 1000
  %c10 = udiv i32 %c9, 7
  %c11 = urem i32 %c10, %m
  store i32 %c11, ptr addrspace(1) %q
  %s1 = sdiv i16 %s, 13
  %s2 = shl i16 %s1, 3
  %s3 = ashr i16 %s2, 3
  %s4 = lshr i16 %s3, 2
  %s5 = mul i16 %s4, %s
  %s6 = xor i16 %s5, 1234
  %s7 = icmp slt i16 %s6, %s
  %s8 = select i1 %s7, i16 %s6, i16 5
  store i16 %s8, ptr addrspace(1) %q
  %b1 = add i8 %b, 7
  %b2 = icmp ult i8 %b1, 100
  %b3 = select i1 %b2, i8 %b1, i8 0
  store i8 %b3, ptr addrspace(1) %p
  ret void
}
define ptx_kernel void @k2(ptr addrspace(1) %p, ptr addrspace(1) %q, ptr addrspace(3) %sh) {
  %v = load <2 x half>, ptr addrspace(1) %p
  %w = load <2 x half>, ptr addrspace(1) %q
  %m = call <2 x half> @llvm.maxnum.v2f16(<2 x half> %v, <2 x half> %w)
  %f = call <2 x half> @llvm.fma.v2f16(<2 x half> %m, <2 x half> %v, <2 x half> %w)
  %c = fcmp olt <2 x half> %f, %w
  %s = select <2 x i1> %c, <2 x half> %f, <2 x half> %v
  %e = extractelement <2 x half> %s, i32 1
  %sq = call half @llvm.sqrt.f16(half %e)
  %fl = call half @llvm.floor.f16(half %sq)
  %dv = fdiv half %fl, %e
  %ng = fneg half %dv
  store half %ng, ptr addrspace(1) %p
  %b = load bfloat, ptr addrspace(1) %q
  %bb = load <4 x bfloat>, ptr addrspace(1) %q
  %b1 = call bfloat @llvm.fma.bf16(bfloat %b, bfloat %b, bfloat 2.0)
  %b2 = call bfloat @llvm.fabs.bf16(bfloat %b1)
  %b3 = call bfloat @llvm.maxnum.bf16(bfloat %b2, bfloat %b)
  %b4 = fsub bfloat %b3, %b
  %b5 = fmul bfloat %b4, %b
  %b6 = fdiv bfloat %b5, %b
  %b7 = fcmp ogt bfloat %b6, %b
  %b8 = select i1 %b7, bfloat %b6, bfloat %b
  %fs = fptosi bfloat %b8 to i32
  %si = sitofp i32 %fs to bfloat
  %ui = uitofp i64 77 to half
  store bfloat %si, ptr addrspace(1) %p
  %bs = fadd <4 x bfloat> %bb, %bb
  %bt = fneg <4 x bfloat> %bs
  store <4 x bfloat> %bt, ptr addrspace(1) %q
  %d = load double, ptr addrspace(1) %p
  %d1 = fptrunc double %d to half
  %d2 = fptrunc double %d to bfloat
  %d3 = fptrunc double %d to float
  %d4 = fptosi double %d to i64
  %d5 = uitofp i64 %d4 to double
  %d6 = fdiv double %d5, %d
  %d7 = fneg double %d6
  store half %d1, ptr addrspace(1) %p
  store bfloat %d2, ptr addrspace(1) %p
  store float %d3, ptr addrspace(1) %p
  store double %d7, ptr addrspace(1) %p
  %sv = load volatile i32, ptr addrspace(3) %sh
  %r = call i32 @llvm.nvvm.redux.sync.add(i32 %sv, i32 -1)
  %pp = icmp eq i32 %r, 3
  %vt = call i1 @llvm.nvvm.vote.any.sync(i32 -1, i1 %pp)
  %vb = call i32 @llvm.nvvm.vote.ballot.sync(i32 -1, i1 %vt)
  %sd = call {i32,i1} @llvm.nvvm.shfl.sync.down.i32p(i32 -1,i32 %vb,i32 1,i32 31)
  %s0 = extractvalue {i32,i1} %sd, 0
  %s1 = extractvalue {i32,i1} %sd, 1
  %ma = call i32 @llvm.nvvm.match.any.sync.i32(i32 -1, i32 %s0)
  %am = call i32 @llvm.nvvm.activemask()
  %x = select i1 %s1, i32 %ma, i32 %am
  call void @llvm.nvvm.bar.warp.sync(i32 -1)
  call void @llvm.nvvm.membar.gl()
  %at = atomicrmw add ptr addrspace(1) %p, i32 %x seq_cst
  %at2 = atomicrmw umax ptr addrspace(3) %sh, i32 %at acquire
  %at3 = cmpxchg ptr addrspace(1) %q, i32 %at2, i32 1 acq_rel monotonic
  %at4 = atomicrmw fadd ptr addrspace(1) %q, double 1.0 monotonic
  %at5 = atomicrmw xchg ptr addrspace(1) %q, i64 1 monotonic
  %at6 = atomicrmw fadd ptr addrspace(1) %q, bfloat 1.0 monotonic
  fence seq_cst
  fence syncscope("block") acquire
  %ld = load atomic i32, ptr addrspace(1) %p acquire, align 4
  store atomic i32 %ld, ptr addrspace(1) %p release, align 4
  %px = icmp eq i32 %ld, 9
  br i1 %px, label %bad, label %ok
bad:
  call void @llvm.trap()
  unreachable
ok:
  ret void
}
define ptx_kernel void @k3(ptr addrspace(1) %p, float %x, float %y, i32 %i, i128 %big) {
  %a = call afn float @llvm.tanh.f32(float %x)
  %b = call float @llvm.nvvm.rcp.approx.ftz.f(float %a)
  %c = call float @llvm.nvvm.sin.approx.f(float %b)
  %d = call float @llvm.nvvm.div.approx.f(float %c, float %y)
  %e = call float @llvm.nvvm.div.full(float %d, float %y)
  %f = call i32 @llvm.nvvm.prmt(i32 %i, i32 %i, i32 12816)
  %gv = call <2 x bfloat> @llvm.nvvm.ff2bf16x2.rn(float %e, float %y)
  %g = bitcast <2 x bfloat> %gv to i32
  %h = add i32 %f, %g
  store i32 %h, ptr addrspace(1) %p
  %u = mul i128 %big, 12345678901234567890
  %v = trunc i128 %u to i64
  store i64 %v, ptr addrspace(1) %p
  %ii = sext i32 %i to i64
  %gp = getelementptr i8, ptr addrspace(1) %p, i64 %ii
  %l8 = load i8, ptr addrspace(1) %gp
  %s8 = icmp ne i8 %l8, 0
  %v4 = load <4 x i8>, ptr addrspace(1) %gp, align 4
  %v44 = add <4 x i8> %v4, %v4
  store <4 x i8> %v44, ptr addrspace(1) %p, align 4
  %v2 = load <2 x i16>, ptr addrspace(1) %gp, align 4
  %v22 = add <2 x i16> %v2, %v2
  store <2 x i16> %v22, ptr addrspace(1) %p, align 4
  %v1 = load <4 x i1>, ptr addrspace(1) %gp, align 4
  %vv = zext <4 x i1> %v1 to <4 x i32>
  store <4 x i32> %vv, ptr addrspace(1) %p, align 16
  %z = zext i1 %s8 to i8
  store i8 %z, ptr addrspace(1) %p
  ret void
}
