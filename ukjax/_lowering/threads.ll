; How the handler evaluates states on a CPU, by threads that XLA has; see _handler.py and handler.ll, of which it is a part.

declare ptr @malloc(i64)
declare void @free(ptr)
declare i32 @sched_yield()
@stopped = private constant [${said} x i8] c"${stopped}\00"

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

; Counts evaluations of an entry, and tells its place to the optimiser when it has been evaluated often: see _compile.py.
define void @count(ptr %e, i64 %n) noinline {
entry:
  %pl = getelementptr i8, ptr %e, i64 56
  %before = atomicrmw sub ptr %pl, i64 %n monotonic
  %after = sub i64 %before, %n
  %was = icmp sgt i64 %before, 0
  %is = icmp sle i64 %after, 0
  %often = and i1 %was, %is
  br i1 %often, label %tell, label %done
tell:
  %place = alloca ptr, align 8
  store ptr %e, ptr %place
  %sent = call i64 inttoptr (i64 ${write} to ptr)(i32 ${outbox}, ptr %place, i64 8)
  br label %done
done:
  ret void
}

; Runs the code of an entry for all states, or members, and computes the sure way those that need it. The result: null, or a
; message of what went wrong.
define internal ptr @evaluate(ptr %frame, ptr %e, ptr %arrays, i64 %n, i64 %size) {
entry:
  ; Behind all arrays: what loops of the process count, and are asked; whether this call was left unfinished; the entry.
  %left = alloca i64, align 8
  store i64 0, ptr %left
  %counter = alloca i64, align 8
  %behind = getelementptr ptr, ptr %arrays, i64 %n
  store ptr inttoptr (i64 ${runs} to ptr), ptr %behind
  %behind1 = getelementptr ptr, ptr %behind, i64 1
  store ptr %left, ptr %behind1
  %behind2 = getelementptr ptr, ptr %behind, i64 2
  store ptr %e, ptr %behind2
  %run = load ptr, ptr %e
  %pchunk = getelementptr i8, ptr %e, i64 32
  %chunk = load i64, ptr %pchunk
  %runs = icmp ne ptr %run, null
  br i1 %runs, label %first, label %look
first:
  %steps = icmp slt i64 %chunk, 0
  br i1 %steps, label %go, label %counted
counted:
  call void @count(ptr %e, i64 %size)
  br label %go
go:
  call void @everywhere(ptr %frame, ptr %run, ptr %arrays, i64 %size, i64 %chunk)
  br label %look
look:
  %unfinished = load atomic i64, ptr %left monotonic, align 8
  %halted = icmp ne i64 %unfinished, 0
  br i1 %halted, label %halt, label %whole
halt:
  ret ptr @stopped
whole:
  %pmend = getelementptr i8, ptr %e, i64 8
  %mend = load ptr, ptr %pmend
  %mends = icmp ne ptr %mend, null
  br i1 %mends, label %check, label %done
check:
  %pflags = getelementptr i8, ptr %e, i64 16
  %number = load i64, ptr %pflags
  %pfl = getelementptr ptr, ptr %arrays, i64 %number
  %flags = load ptr, ptr %pfl
  %needed = call i1 @any(ptr %flags, i64 %size)
  br i1 %needed, label %python, label %done
python:
  %message = call ptr %mend(ptr %arrays, i64 %size, ptr null)
  %well = icmp eq ptr %message, null
  br i1 %well, label %mended, label %wrong
wrong:
  ret ptr %message
mended:
  %loops = icmp slt i64 %chunk, 0
  br i1 %loops, label %on, label %done
on:
  ; The members of a loop go on from where they are.
  store i64 1, ptr %counter
  %finished = call i64 %run(ptr %arrays, ptr %counter, i64 %size, i64 0, i64 1)
  br label %look
done:
  ret ptr null
}

