; The function that XLA calls for all machine code of a process; see _handler.py, which fills in what stands in braces after a dollar sign.
;
; Places in XLA's structures are bytes from their beginning, on a machine of 64 bits:
;   XLA_FFI_CallFrame: extension 8, api 16, context 24, arguments: number 56, buffers 72, results: number 96, buffers 112,
;     attributes 160
;   XLA_FFI_Buffer: data 24, rank 32, dims 40.  XLA_FFI_Scalar: value 8
; and in an entry of the table: run 0, mend 8, flags 16, first 24, chunk 32, running 40.

declare ptr @malloc(i64)
declare void @free(ptr)
declare i32 @sched_yield()
@gone = private constant [${length} x i8] c"${gone}\00"
@stopped = private constant [${said} x i8] c"${stopped}\00"

define internal ptr @failed(ptr %frame, ptr %message) noinline {
entry:
  %pa = getelementptr i8, ptr %frame, i64 16
  %api = load ptr, ptr %pa
  %pf = getelementptr i8, ptr %api, i64 ${Error_Create}
  %create = load ptr, ptr %pf
  %args = alloca [32 x i8], align 8
  store i64 32, ptr %args
  %e = getelementptr i8, ptr %args, i64 8
  store ptr null, ptr %e
  %m = getelementptr i8, ptr %args, i64 16
  store ptr %message, ptr %m
  %c = getelementptr i8, ptr %args, i64 24
  store i32 9, ptr %c
  %error = call ptr %create(ptr %args)
  ret ptr %error
}

; Frees an error that XLA has returned, if there is one; tells whether there was one.
define internal i1 @had_error(ptr %api, ptr %error) noinline {
entry:
  %none = icmp eq ptr %error, null
  br i1 %none, label %no, label %yes
yes:
  %pf = getelementptr i8, ptr %api, i64 ${Error_Destroy}
  %destroy = load ptr, ptr %pf
  %args = alloca [24 x i8], align 8
  store i64 24, ptr %args
  %e = getelementptr i8, ptr %args, i64 8
  store ptr null, ptr %e
  %p = getelementptr i8, ptr %args, i64 16
  store ptr %error, ptr %p
  call void %destroy(ptr %args)
  ret i1 true
no:
  ret i1 false
}

; The work that threads share: next state, states done, threads that have not left, size, chunk, code, arrays. Code with a
; negative chunk takes states, members of a loop, from the counter itself.
%work = type { i64, i64, i64, i64, i64, ptr, ptr }

define internal void @take(ptr %w) {
entry:
  %pd = getelementptr %work, ptr %w, i32 0, i32 1
  %ps = getelementptr %work, ptr %w, i32 0, i32 3
  %size = load i64, ptr %ps
  %pc = getelementptr %work, ptr %w, i32 0, i32 4
  %chunk = load i64, ptr %pc
  %pr = getelementptr %work, ptr %w, i32 0, i32 5
  %run = load ptr, ptr %pr
  %pa = getelementptr %work, ptr %w, i32 0, i32 6
  %arrays = load ptr, ptr %pa
  %loops = icmp slt i64 %chunk, 0
  br i1 %loops, label %members, label %head
members:
  ; The arrays are there as long as a member that was taken is not done.
  %one = atomicrmw add ptr %w, i64 1 seq_cst
  %left = icmp slt i64 %one, %size
  br i1 %left, label %loop, label %done
loop:
  %finished = call i64 %run(ptr %arrays, ptr %w, i64 %size, i64 %one, i64 0)
  %earlier = atomicrmw add ptr %pd, i64 %finished seq_cst
  ret void
head:
  %begin = atomicrmw add ptr %w, i64 %chunk seq_cst
  %some = icmp slt i64 %begin, %size
  br i1 %some, label %body, label %done
body:
  %next = add i64 %begin, %chunk
  %last = icmp slt i64 %next, %size
  %end = select i1 %last, i64 %next, i64 %size
  call void %run(ptr %arrays, i64 %begin, i64 %end)
  %count = sub i64 %end, %begin
  %before = atomicrmw add ptr %pd, i64 %count seq_cst
  br label %head
done:
  ret void
}

define internal void @leave(ptr %w) {
entry:
  %p = getelementptr %work, ptr %w, i32 0, i32 2
  %before = atomicrmw sub ptr %p, i64 1 seq_cst
  %last = icmp eq i64 %before, 1
  br i1 %last, label %free, label %done
free:
  call void @free(ptr %w)
  br label %done
done:
  ret void
}

define internal void @task(ptr %w) {
entry:
  call void @take(ptr %w)
  call void @leave(ptr %w)
  ret void
}

define internal void @everywhere(ptr %frame, ptr %run, ptr %arrays, i64 %size, i64 %asked) noinline {
entry:
  %loops = icmp slt i64 %asked, 0
  %minus = sub i64 0, %asked
  %chunk = select i1 %loops, i64 %minus, i64 %asked
  %over = icmp sgt i64 %size, %chunk
  br i1 %over, label %ask, label %alone
alone:
  br i1 %loops, label %members, label %states
states:
  call void %run(ptr %arrays, i64 0, i64 %size)
  ret void
members:
  %some = icmp sgt i64 %size, 0
  br i1 %some, label %loop, label %nobody
loop:
  %counter = alloca i64, align 8
  store i64 1, ptr %counter
  %finished = call i64 %run(ptr %arrays, ptr %counter, i64 %size, i64 0, i64 0)
  ret void
nobody:
  ret void
ask:
  %pa = getelementptr i8, ptr %frame, i64 16
  %api = load ptr, ptr %pa
  %px = getelementptr i8, ptr %frame, i64 24
  %ctx = load ptr, ptr %px
  %number = alloca i64, align 8
  store i64 1, ptr %number
  %args = alloca [40 x i8], align 8
  store i64 32, ptr %args
  %a1 = getelementptr i8, ptr %args, i64 8
  store ptr null, ptr %a1
  %a2 = getelementptr i8, ptr %args, i64 16
  store ptr %ctx, ptr %a2
  %a3 = getelementptr i8, ptr %args, i64 24
  store ptr %number, ptr %a3
  %pn = getelementptr i8, ptr %api, i64 ${ThreadPool_NumThreads}
  %number_of = load ptr, ptr %pn
  %e = call ptr %number_of(ptr %args)
  %none = call i1 @had_error(ptr %api, ptr %e)
  %given = load i64, ptr %number
  %threads = select i1 %none, i64 1, i64 %given
  %c1 = add i64 %size, %chunk
  %c2 = sub i64 %c1, 1
  %chunks = sdiv i64 %c2, %chunk
  %fewer = icmp slt i64 %chunks, %threads
  %users = select i1 %fewer, i64 %chunks, i64 %threads
  %several = icmp sgt i64 %users, 1
  br i1 %several, label %share, label %alone
share:
  %w = call ptr @malloc(i64 56)
  %w1 = getelementptr %work, ptr %w, i32 0, i32 1
  %w2 = getelementptr %work, ptr %w, i32 0, i32 2
  %w3 = getelementptr %work, ptr %w, i32 0, i32 3
  %w4 = getelementptr %work, ptr %w, i32 0, i32 4
  %w5 = getelementptr %work, ptr %w, i32 0, i32 5
  %w6 = getelementptr %work, ptr %w, i32 0, i32 6
  store i64 0, ptr %w
  store i64 0, ptr %w1
  store i64 %users, ptr %w2
  store i64 %size, ptr %w3
  store i64 %asked, ptr %w4
  store ptr %run, ptr %w5
  store ptr %arrays, ptr %w6
  store i64 40, ptr %args
  store ptr @task, ptr %a3
  %a4 = getelementptr i8, ptr %args, i64 32
  store ptr %w, ptr %a4
  %pt = getelementptr i8, ptr %api, i64 ${ThreadPool_Schedule}
  %schedule = load ptr, ptr %pt
  br label %next
next:
  %k = phi i64 [1, %share], [%k1, %after]
  %f = call ptr %schedule(ptr %args)
  %refused = call i1 @had_error(ptr %api, ptr %f)
  br i1 %refused, label %without, label %after
without:
  call void @leave(ptr %w)
  br label %after
after:
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k1, %users
  br i1 %more, label %next, label %work.here
work.here:
  call void @take(ptr %w)
  br label %wait
wait:
  %done = load atomic i64, ptr %w1 seq_cst, align 8
  %all = icmp eq i64 %done, %size
  br i1 %all, label %over.now, label %yield
yield:
  %y = call i32 @sched_yield()
  br label %wait
over.now:
  call void @leave(ptr %w)
  ret void
}

define internal void @data(ptr %buffers, i64 %count, ptr %into) {
entry:
  br label %head
head:
  %k = phi i64 [0, %entry], [%k1, %body]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %body, label %done
body:
  %pb = getelementptr ptr, ptr %buffers, i64 %k
  %b = load ptr, ptr %pb
  %pd = getelementptr i8, ptr %b, i64 24
  %d = load ptr, ptr %pd
  %pi = getelementptr ptr, ptr %into, i64 %k
  store ptr %d, ptr %pi
  %k1 = add i64 %k, 1
  br label %head
done:
  ret void
}

; The length of the first axis of a buffer; 1 for a number.
define internal i64 @length(ptr %buffer) {
entry:
  %pr = getelementptr i8, ptr %buffer, i64 32
  %rank = load i64, ptr %pr
  %number = icmp eq i64 %rank, 0
  br i1 %number, label %one, label %axis
axis:
  %pd = getelementptr i8, ptr %buffer, i64 40
  %dims = load ptr, ptr %pd
  %n = load i64, ptr %dims
  ret i64 %n
one:
  ret i64 1
}

define internal i1 @any(ptr %flags, i64 %size) {
entry:
  br label %head
head:
  %k = phi i64 [0, %entry], [%k1, %body]
  %more = icmp slt i64 %k, %size
  br i1 %more, label %body, label %none
body:
  %p = getelementptr i8, ptr %flags, i64 %k
  %x = load i8, ptr %p
  %k1 = add i64 %k, 1
  %clear = icmp eq i8 %x, 0
  br i1 %clear, label %head, label %found
found:
  ret i1 true
none:
  ret i1 false
}

define ptr @handler(ptr %frame) {
entry:
  %pe = getelementptr i8, ptr %frame, i64 8
  %ext = load ptr, ptr %pe
  %plain = icmp eq ptr %ext, null
  br i1 %plain, label %look, label %asked
asked:
  %pt = getelementptr i8, ptr %ext, i64 8
  %kind = load i32, ptr %pt
  %version = icmp eq i32 %kind, 1
  br i1 %version, label %tell, label %look
tell:
  %pm = getelementptr i8, ptr %ext, i64 24
  %meta = load ptr, ptr %pm
  %major = getelementptr i8, ptr %meta, i64 24
  store i32 ${major}, ptr %major
  %minor = getelementptr i8, ptr %meta, i64 28
  store i32 ${minor}, ptr %minor
  ret ptr null
look:
  %pat = getelementptr i8, ptr %frame, i64 160
  %attrs = load ptr, ptr %pat
  %scalar = load ptr, ptr %attrs
  %pv = getelementptr i8, ptr %scalar, i64 8
  %v = load ptr, ptr %pv
  %key = load i64, ptr %v
  %start = and i64 %key, ${mask}
  br label %search
search:
  %k = phi i64 [%start, %look], [%k2, %step]
  %tries = phi i64 [0, %look], [%tries1, %step]
  %place = getelementptr { i64, ptr }, ptr inttoptr (i64 ${table} to ptr), i64 %k
  %there = load i64, ptr %place
  %same = icmp eq i64 %there, %key
  br i1 %same, label %found, label %other
other:
  %empty = icmp eq i64 %there, 0
  %tries1 = add i64 %tries, 1
  %all = icmp sgt i64 %tries1, ${mask}
  %stop = or i1 %empty, %all
  br i1 %stop, label %missing, label %step
step:
  %k1 = add i64 %k, 1
  %k2 = and i64 %k1, ${mask}
  br label %search
missing:
  %error = call ptr @failed(ptr %frame, ptr @gone)
  ret ptr %error
found:
  %pentry = getelementptr i8, ptr %place, i64 8
  %e = load atomic ptr, ptr %pentry seq_cst, align 8
  %nothing = icmp eq ptr %e, null
  br i1 %nothing, label %missing, label %enter
enter:
  %running = getelementptr i8, ptr %e, i64 40
  %r0 = atomicrmw add ptr %running, i64 1 seq_cst
  %e2 = load atomic ptr, ptr %pentry seq_cst, align 8
  %still = icmp eq ptr %e, %e2
  br i1 %still, label %call, label %late
late:
  %r1 = atomicrmw sub ptr %running, i64 1 seq_cst
  br label %missing
call:
  %pna = getelementptr i8, ptr %frame, i64 56
  %na = load i64, ptr %pna
  %pargs = getelementptr i8, ptr %frame, i64 72
  %args = load ptr, ptr %pargs
  %pnr = getelementptr i8, ptr %frame, i64 96
  %nr = load i64, ptr %pnr
  %prets = getelementptr i8, ptr %frame, i64 112
  %rets = load ptr, ptr %prets
  %n = add i64 %na, %nr
  ; Behind all arrays: what loops of the process count, and are asked; and whether this call was left unfinished.
  %n2 = add i64 %n, 2
  %arrays = alloca ptr, i64 %n2, align 8
  %left = alloca i64, align 8
  store i64 0, ptr %left
  %behind = getelementptr ptr, ptr %arrays, i64 %n
  store ptr inttoptr (i64 ${runs} to ptr), ptr %behind
  %behind1 = getelementptr ptr, ptr %behind, i64 1
  store ptr %left, ptr %behind1
  call void @data(ptr %args, i64 %na, ptr %arrays)
  %results = getelementptr ptr, ptr %arrays, i64 %na
  call void @data(ptr %rets, i64 %nr, ptr %results)
  %run = load ptr, ptr %e
  %pmend = getelementptr i8, ptr %e, i64 8
  %mend = load ptr, ptr %pmend
  %pflags = getelementptr i8, ptr %e, i64 16
  %number = load i64, ptr %pflags
  %pfirst = getelementptr i8, ptr %e, i64 24
  %first = load i64, ptr %pfirst
  %shared = icmp slt i64 %first, 0
  br i1 %shared, label %sized, label %batched
batched:
  %pb = getelementptr ptr, ptr %args, i64 %first
  %b = load ptr, ptr %pb
  %length = call i64 @length(ptr %b)
  br label %sized
sized:
  %size = phi i64 [1, %call], [%length, %batched]
  %runs = icmp ne ptr %run, null
  br i1 %runs, label %evaluate, label %evaluated
evaluate:
  %pchunk = getelementptr i8, ptr %e, i64 32
  %chunk = load i64, ptr %pchunk
  call void @everywhere(ptr %frame, ptr %run, ptr %arrays, i64 %size, i64 %chunk)
  br label %evaluated
evaluated:
  %unfinished = load atomic i64, ptr %left monotonic, align 8
  %halted = icmp ne i64 %unfinished, 0
  br i1 %halted, label %done, label %whole
whole:
  %mends = icmp ne ptr %mend, null
  br i1 %mends, label %check, label %done
check:
  %pfl = getelementptr ptr, ptr %arrays, i64 %number
  %flags = load ptr, ptr %pfl
  %needed = call i1 @any(ptr %flags, i64 %size)
  br i1 %needed, label %python, label %done
python:
  %message0 = call ptr %mend(ptr %arrays, i64 %size)
  %unfinished1 = load atomic i64, ptr %left monotonic, align 8
  %complete = icmp eq i64 %unfinished1, 0
  %message = select i1 %complete, ptr %message0, ptr @stopped
  br label %done
done:
  %said = phi ptr [@stopped, %evaluated], [null, %whole], [null, %check], [%message, %python]
  %r2 = atomicrmw sub ptr %running, i64 1 seq_cst
  %well = icmp eq ptr %said, null
  br i1 %well, label %success, label %failure
success:
  ret ptr null
failure:
  %error2 = call ptr @failed(ptr %frame, ptr %said)
  ret ptr %error2
}
