; How the handler evaluates states on a GPU, by kernels that the driver launches; see _gpu.py and handler.ll, of which it is a part.

@lost = private constant [${lost_size} x i8] c"${lost}\00"

; Finds the stream on which XLA wants the work done; tells whether XLA names none.
define internal i1 @without.stream(ptr %frame, ptr %into) {
entry:
  %pa = getelementptr i8, ptr %frame, i64 16
  %api = load ptr, ptr %pa
  %px = getelementptr i8, ptr %frame, i64 24
  %ctx = load ptr, ptr %px
  %args = alloca [32 x i8], align 8
  store i64 32, ptr %args
  %a1 = getelementptr i8, ptr %args, i64 8
  store ptr null, ptr %a1
  %a2 = getelementptr i8, ptr %args, i64 16
  store ptr %ctx, ptr %a2
  %a3 = getelementptr i8, ptr %args, i64 24
  store ptr null, ptr %a3
  %pg = getelementptr i8, ptr %api, i64 ${Stream_Get}
  %get = load ptr, ptr %pg
  %e = call ptr %get(ptr %args)
  %failed = call i1 @had_error(ptr %api, ptr %e)
  %s = load ptr, ptr %a3
  store ptr %s, ptr %into
  ret i1 %failed
}

; Launches the kernel of an entry for all states, or members, and computes the sure way those that need it. The result:
; null, or a message of what went wrong. The last array has the two counters of _thread.py. A kernel takes all arrays, or of
; those before the counters only one, whose number is then not negative.
define internal ptr @evaluate(ptr %frame, ptr %e, ptr %arrays, i64 %n, i64 %size) {
entry:
  %none = icmp sle i64 %size, 0
  br i1 %none, label %done, label %some
some:
  %stream.at = alloca ptr, align 8
  %none.named = call i1 @without.stream(ptr %frame, ptr %stream.at)
  br i1 %none.named, label %lost, label %there
lost:
  ret ptr @lost
there:
  %stream = load ptr, ptr %stream.at
  %size.at = alloca i64, align 8
  store i64 %size, ptr %size.at
  %resumed.at = alloca i64, align 8
  store i64 0, ptr %resumed.at
  %doubts.at = alloca i64, align 8
  %n2 = add i64 %n, 2
  %params = alloca ptr, i64 %n2, align 8
  %last = sub i64 %n, 1
  %pc = getelementptr ptr, ptr %arrays, i64 %last
  %ponly = getelementptr i8, ptr %e, i64 16
  %only = load i64, ptr %ponly
  %every = icmp slt i64 %only, 0
  %begin = select i1 %every, i64 0, i64 %only
  %count = select i1 %every, i64 %last, i64 1
  br label %param
param:
  %k = phi i64 [0, %there], [%k1, %param]
  %number = add i64 %begin, %k
  %from = getelementptr ptr, ptr %arrays, i64 %number
  %to = getelementptr ptr, ptr %params, i64 %k
  store ptr %from, ptr %to
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k1, %count
  br i1 %more, label %param, label %whole
whole:
  %p0 = getelementptr ptr, ptr %params, i64 %count
  store ptr %pc, ptr %p0
  %p1 = getelementptr ptr, ptr %p0, i64 1
  store ptr %size.at, ptr %p1
  %p2 = getelementptr ptr, ptr %p1, i64 1
  store ptr %resumed.at, ptr %p2
  %counters = load i64, ptr %pc
  %doubts = add i64 %counters, 8
  %kernel = load ptr, ptr %e
  %pmend = getelementptr i8, ptr %e, i64 8
  %mend = load ptr, ptr %pmend
  %pchunk = getelementptr i8, ptr %e, i64 32
  %chunk = load i64, ptr %pchunk
  %pblocks = getelementptr i8, ptr %e, i64 48
  %most = load i64, ptr %pblocks
  %loops = icmp slt i64 %chunk, 0
  %minus = sub i64 0, %chunk
  %threads = select i1 %loops, i64 %minus, i64 %chunk
  %c1 = add i64 %size, %threads
  %c2 = sub i64 %c1, 1
  %all = sdiv i64 %c2, %threads
  ; Threads of a loop take members until none is left.
  %fewer = icmp slt i64 %all, %most
  %few = select i1 %fewer, i64 %all, i64 %most
  %blocks64 = select i1 %loops, i64 %few, i64 %all
  %blocks = trunc i64 %blocks64 to i32
  %width = trunc i64 %threads to i32
  br label %launch
launch:
  %r1 = call i32 inttoptr (i64 ${cuMemsetD8Async} to ptr)(i64 %counters, i8 0, i64 16, ptr %stream)
  %ok1 = icmp eq i32 %r1, 0
  br i1 %ok1, label %go, label %wrong
go:
  %r2 = call i32 inttoptr (i64 ${cuLaunchKernel} to ptr)(ptr %kernel, i32 %blocks, i32 1, i32 1, i32 %width, i32 1, i32 1, i32 0, ptr %stream, ptr %params, ptr null)
  %ok2 = icmp eq i32 %r2, 0
  br i1 %ok2, label %launched, label %wrong
launched:
  %mends = icmp ne ptr %mend, null
  br i1 %mends, label %ask, label %done
ask:
  %r3 = call i32 inttoptr (i64 ${cuMemcpyDtoHAsync} to ptr)(ptr %doubts.at, i64 %doubts, i64 8, ptr %stream)
  %ok3 = icmp eq i32 %r3, 0
  br i1 %ok3, label %wait, label %wrong
wait:
  %r4 = call i32 inttoptr (i64 ${cuStreamSynchronize} to ptr)(ptr %stream)
  %ok4 = icmp eq i32 %r4, 0
  br i1 %ok4, label %waited, label %wrong
waited:
  %d = load i64, ptr %doubts.at
  %certain = icmp eq i64 %d, 0
  br i1 %certain, label %done, label %python
python:
  %message = call ptr %mend(ptr %arrays, i64 %size, ptr %stream)
  %well = icmp eq ptr %message, null
  br i1 %well, label %mended, label %said
said:
  ret ptr %message
mended:
  ; The members of a loop go on from where they are.
  store i64 1, ptr %resumed.at
  br i1 %loops, label %launch, label %done
wrong:
  %error = phi i32 [%r1, %launch], [%r2, %go], [%r3, %ask], [%r4, %wait]
  %which = phi i32 [0, %launch], [1, %go], [2, %ask], [3, %wait]
  %text = call ptr inttoptr (i64 ${say} to ptr)(i32 %which, i32 %error)
  ret ptr %text
done:
  ret ptr null
}
