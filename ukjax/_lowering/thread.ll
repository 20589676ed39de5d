target triple = "nvptx64-nvidia-cuda"
; The number of a thread of a GPU, how many there are, and where those of a block wait for each other; see _thread.py.

declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
declare i32 @llvm.nvvm.read.ptx.sreg.nctaid.x()
declare void @llvm.nvvm.barrier0()

define internal void @meet() alwaysinline {
  call void @llvm.nvvm.barrier0()
  ret void
}

define internal i64 @index() alwaysinline {
  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %n = call i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
  %c = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()
  %t1 = zext i32 %t to i64
  %n1 = zext i32 %n to i64
  %c1 = zext i32 %c to i64
  %before = mul i64 %n1, %c1
  %i = add i64 %before, %t1
  ret i64 %i
}

define internal i64 @threads() alwaysinline {
  %n = call i32 @llvm.nvvm.read.ptx.sreg.ntid.x()
  %c = call i32 @llvm.nvvm.read.ptx.sreg.nctaid.x()
  %n1 = zext i32 %n to i64
  %c1 = zext i32 %c to i64
  %all = mul i64 %n1, %c1
  ret i64 %all
}
