; The loop that steps members of a batch until none of them goes on; see _loop.py, which fills in what stands in braces after a dollar sign.
;
; Lanes of a vector hold members. A lane whose member is done writes it down and takes the next one from a counter, which
; other threads take from too.

@array.given = internal constant [${arrays} x i64] [${given}]
@array.of = internal constant [${arrays} x i64] [${of}]
@array.bytes = internal constant [${arrays} x i64] [${bytes}]
@array.item = internal constant [${arrays} x i64] [${item}]
@array.slot = internal constant [${arrays} x i64] [${slot}]
@array.size = internal constant [${arrays} x i64] [${size}]

; Copies the entries of a row to the slots of a lane, or back.
define internal void @entries(ptr %row, ptr %slots, i64 %n, i64 %i, i1 %into) {
entry:
  br label %head
head:
  %e = phi i64 [0, %entry], [%e1, %moved]
  %more = icmp slt i64 %e, %n
  br i1 %more, label %move, label %done
move:
  %x0 = mul i64 %e, %i
  %x = getelementptr i8, ptr %row, i64 %x0
  %y0 = mul i64 %e, ${room}
  %y = getelementptr i8, ptr %slots, i64 %y0
  %from = select i1 %into, ptr %x, ptr %y
  %to = select i1 %into, ptr %y, ptr %x
  switch i64 %i, label %one [ i64 8, label %eight i64 4, label %four i64 2, label %two ]
eight:
  %v8 = load i64, ptr %from, align 8
  store i64 %v8, ptr %to, align 8
  br label %moved
four:
  %v4 = load i32, ptr %from, align 4
  store i32 %v4, ptr %to, align 4
  br label %moved
two:
  %v2 = load i16, ptr %from, align 2
  store i16 %v2, ptr %to, align 2
  br label %moved
one:
  %v1 = load i8, ptr %from, align 1
  store i8 %v1, ptr %to, align 1
  br label %moved
moved:
  %e1 = add i64 %e, 1
  br label %head
done:
  ret void
}

; Copies the entries of a member's arrays, whose numbers are in a table, to its lane, or those of the first `count` back.
define internal void @carry(ptr %table, ptr %arrays, ptr %kept, i64 %member, i64 %lane, i64 %count, i1 %into) noinline {
entry:
  br label %head
head:
  %k = phi i64 [0, %entry], [%k1, %known]
  %some = icmp slt i64 %k, %count
  br i1 %some, label %known, label %done
known:
  %po = getelementptr i64, ptr %table, i64 %k
  %o = load i64, ptr %po
  %pa = getelementptr ptr, ptr %arrays, i64 %o
  %a = load ptr, ptr %pa
  %pb = getelementptr i64, ptr @array.bytes, i64 %k
  %b = load i64, ptr %pb
  %pi = getelementptr i64, ptr @array.item, i64 %k
  %i = load i64, ptr %pi
  %ps = getelementptr i64, ptr @array.slot, i64 %k
  %s = load i64, ptr %ps
  %pn = getelementptr i64, ptr @array.size, i64 %k
  %n = load i64, ptr %pn
  %row0 = mul i64 %member, %b
  %row = getelementptr i8, ptr %a, i64 %row0
  %lane0 = mul i64 %lane, %i
  %slot0 = getelementptr i8, ptr %kept, i64 %s
  %slots = getelementptr i8, ptr %slot0, i64 %lane0
  call void @entries(ptr %row, ptr %slots, i64 %n, i64 %i, i1 %into)
  %k1 = add i64 %k, 1
  br label %head
done:
  ret void
}

; The integer of a lane in a slot.
define internal i64 @number(ptr %kept, i64 %slot, i64 %lane) {
entry:
  %s = getelementptr i8, ptr %kept, i64 %slot
  %p = getelementptr ${index}, ptr %s, i64 %lane
  %j = load ${index}, ptr %p
  %wide = ${widen}
  ret i64 %wide
}

; Writes what a lane has marked into rows of tables.
@mark.of = internal constant [${marks} x i64] [${mark_of}]
@mark.rows = internal constant [${marks} x i64] [${mark_rows}]
@mark.flag = internal constant [${marks} x i64] [${mark_flag}]
@mark.place = internal constant [${marks} x i64] [${mark_place}]
@mark.item = internal constant [${marks} x i64] [${mark_item}]
@mark.slot = internal constant [${marks} x i64] [${mark_slot}]
@mark.size = internal constant [${marks} x i64] [${mark_size}]
define internal void @mark(ptr %arrays, ptr %kept, i64 %member, i64 %lane) noinline {
entry:
  br label %head
head:
  %k = phi i64 [0, %entry], [%k1, %next]
  %some = icmp slt i64 %k, ${marks}
  br i1 %some, label %known, label %done
known:
  %pf = getelementptr i64, ptr @mark.flag, i64 %k
  %f = load i64, ptr %pf
  %sf = getelementptr i8, ptr %kept, i64 %f
  %pd = getelementptr i8, ptr %sf, i64 %lane
  %d = load i8, ptr %pd
  %set = icmp ne i8 %d, 0
  %pp = getelementptr i64, ptr @mark.place, i64 %k
  %p = load i64, ptr %pp
  %j = call i64 @number(ptr %kept, i64 %p, i64 %lane)
  %pr = getelementptr i64, ptr @mark.rows, i64 %k
  %r = load i64, ptr %pr
  %fits = icmp ult i64 %j, %r
  %writes = and i1 %set, %fits
  br i1 %writes, label %write, label %next
write:
  %po = getelementptr i64, ptr @mark.of, i64 %k
  %o = load i64, ptr %po
  %pa = getelementptr ptr, ptr %arrays, i64 %o
  %a = load ptr, ptr %pa
  %pi = getelementptr i64, ptr @mark.item, i64 %k
  %i = load i64, ptr %pi
  %ps = getelementptr i64, ptr @mark.slot, i64 %k
  %s = load i64, ptr %ps
  %pn = getelementptr i64, ptr @mark.size, i64 %k
  %n = load i64, ptr %pn
  %member0 = mul i64 %member, %r
  %at = add i64 %member0, %j
  %e = mul i64 %at, %n
  %b = mul i64 %e, %i
  %row = getelementptr i8, ptr %a, i64 %b
  %lane0 = mul i64 %lane, %i
  %slot0 = getelementptr i8, ptr %kept, i64 %s
  %slots = getelementptr i8, ptr %slot0, i64 %lane0
  call void @entries(ptr %row, ptr %slots, i64 %n, i64 %i, i1 false)
  br label %next
next:
  %k1 = add i64 %k, 1
  br label %head
done:
  ret void
}

; Writes and reads rows of tables for all lanes, after a step.
define internal void @turn(ptr %arrays, ptr %kept, ptr %members) noinline {
entry:
  br label %head
head:
  %k = phi i64 [0, %entry], [%k1, %next]
  %more = icmp slt i64 %k, ${width}
  br i1 %more, label %look, label %done
look:
  %pm = getelementptr i64, ptr %members, i64 %k
  %m = load i64, ptr %pm
  %there = icmp sge i64 %m, 0
  br i1 %there, label %member, label %next
member:
  call void @mark(ptr %arrays, ptr %kept, i64 %m, i64 %k)
  call void @read(ptr %arrays, ptr %kept, i64 %m, i64 %k)
  br label %next
next:
  %k1 = add i64 %k, 1
  br label %head
done:
  ret void
}

; The rows of a member as they are given, saved ones and those of tables.
@given.from = internal constant [${givens} x i64] [${given_from}]
@given.to = internal constant [${givens} x i64] [${given_to}]
@given.bytes = internal constant [${givens} x i64] [${given_bytes}]
define internal void @rows(ptr %arrays, i64 %member) noinline {
entry:
  br label %array
array:
  %k = phi i64 [0, %entry], [%k1, %next]
  %some = icmp slt i64 %k, ${givens}
  br i1 %some, label %known, label %done
known:
  %pf = getelementptr i64, ptr @given.from, i64 %k
  %f = load i64, ptr %pf
  %paf = getelementptr ptr, ptr %arrays, i64 %f
  %af = load ptr, ptr %paf
  %pt = getelementptr i64, ptr @given.to, i64 %k
  %t = load i64, ptr %pt
  %pat = getelementptr ptr, ptr %arrays, i64 %t
  %at = load ptr, ptr %pat
  %pb = getelementptr i64, ptr @given.bytes, i64 %k
  %b = load i64, ptr %pb
  %first = mul i64 %member, %b
  %from = getelementptr i8, ptr %af, i64 %first
  %to = getelementptr i8, ptr %at, i64 %first
  %blocks = and i64 %b, -64
  br label %block
block:
  %e = phi i64 [0, %known], [%e1, %copy]
  %whole = icmp slt i64 %e, %blocks
  br i1 %whole, label %copy, label %rest
copy:
  %pe = getelementptr i8, ptr %from, i64 %e
  %qe = getelementptr i8, ptr %to, i64 %e
  %x = load <64 x i8>, ptr %pe, align 1
  store <64 x i8> %x, ptr %qe, align 1
  %e1 = add i64 %e, 64
  br label %block
rest:
  %i = phi i64 [%blocks, %block], [%i1, %byte]
  %more = icmp slt i64 %i, %b
  br i1 %more, label %byte, label %next
byte:
  %pi = getelementptr i8, ptr %from, i64 %i
  %qi = getelementptr i8, ptr %to, i64 %i
  %y = load i8, ptr %pi
  store i8 %y, ptr %qi
  %i1 = add i64 %i, 1
  br label %rest
next:
  %k1 = add i64 %k, 1
  br label %array
done:
  ret void
}

; Lets a lane take the next member, if there is one; on its way already, or as it is given.
define internal i1 @take.next(ptr %arrays, ptr %kept, ptr %members, ptr %counter, i64 %size, i64 %lane, i1 %begun) noinline {
entry:
  %next = atomicrmw add ptr %counter, i64 1 seq_cst
  %new = call i1 @take(ptr %arrays, ptr %kept, ptr %members, i64 %size, i64 %lane, i64 %next, i1 %begun)
  ret i1 %new
}
define internal i1 @take(ptr %arrays, ptr %kept, ptr %members, i64 %size, i64 %lane, i64 %next, i1 %begun) noinline {
entry:
  %p = getelementptr i64, ptr %members, i64 %lane
  %some = icmp slt i64 %next, %size
  br i1 %some, label %yes, label %no
yes:
  store i64 %next, ptr %p
  %table = select i1 %begun, ptr @array.of, ptr @array.given
  call void @carry(ptr %table, ptr %arrays, ptr %kept, i64 %next, i64 %lane, i64 ${arrays}, i1 true)
  br i1 %begun, label %made, label %given
made:
  ; A step may have been made the sure way.
  call void @mark(ptr %arrays, ptr %kept, i64 %next, i64 %lane)
  br label %aimed
given:
  call void @rows(ptr %arrays, i64 %next)
  br label %aimed
aimed:
  call void @read(ptr %arrays, ptr %kept, i64 %next, i64 %lane)
  call void @pick(ptr %arrays, ptr %kept, i64 %next, i64 %lane)
  call void @aim(ptr %arrays, ptr %kept, i64 %next, i64 %lane)
  ret i1 true
no:
  store i64 -1, ptr %p
  %s = getelementptr i8, ptr %kept, i64 ${going}
  %g = getelementptr i8, ptr %s, i64 %lane
  store i8 0, ptr %g
  ret i1 false
}

; Writes down members that are done, and takes others: 0 if no lane has a member, 1 if some go on, 2 if some are new.
define internal i64 @refill(ptr %arrays, ptr %kept, ptr %members, ptr %counter, i64 %size, i1 %begun, ptr %finished) noinline {
entry:
  %g = getelementptr i8, ptr %kept, i64 ${going}
  br label %head
head:
  %k = phi i64 [0, %entry], [%k1, %next]
  %state = phi i64 [0, %entry], [%state1, %next]
  %more = icmp slt i64 %k, ${width}
  br i1 %more, label %look, label %done
look:
  %pm = getelementptr i64, ptr %members, i64 %k
  %m = load i64, ptr %pm
  %there = icmp sge i64 %m, 0
  br i1 %there, label %member, label %next
member:
  %pg = getelementptr i8, ptr %g, i64 %k
  %goes0 = load i8, ptr %pg
  %goes = icmp ne i8 %goes0, 0
  br i1 %goes, label %next, label %over
over:
  call void @carry(ptr @array.of, ptr %arrays, ptr %kept, i64 %m, i64 %k, i64 ${kept_arrays}, i1 false)
  %f = load i64, ptr %finished
  %f1 = add i64 %f, 1
  store i64 %f1, ptr %finished
  %pd = getelementptr ptr, ptr %arrays, i64 ${behind}
  %d = load ptr, ptr %pd
  %d0 = atomicrmw add ptr %d, i64 ${runs} monotonic
  %new = call i1 @take.next(ptr %arrays, ptr %kept, ptr %members, ptr %counter, i64 %size, i64 %k, i1 %begun)
  %found = select i1 %new, i64 2, i64 0
  br label %next
next:
  %here = phi i64 [0, %look], [1, %member], [%found, %over]
  %larger = icmp sgt i64 %here, %state
  %state1 = select i1 %larger, i64 %here, i64 %state
  %k1 = add i64 %k, 1
  br label %head
done:
  ret i64 %state
}

define internal void @advance(ptr %kept) noinline {
entry:
  br label %head
head:
  %k = phi i64 [0, %entry], [%k1, %head]
  %from0 = add i64 %k, ${given_slot}
  %from = getelementptr [${room} x i8], ptr %kept, i64 %from0
  %to0 = add i64 %k, ${taken_slot}
  %to = getelementptr [${room} x i8], ptr %kept, i64 %to0
  %x = load <${width} x i64>, ptr %from, align 8
  store <${width} x i64> %x, ptr %to, align 8
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k1, ${carried}
  br i1 %more, label %head, label %done
done:
  ret void
}

; Counts all members as finished that are in lanes, or that nobody has taken, and notes that they are not.
define internal void @abandon(ptr %arrays, ptr %members, ptr %counter, i64 %size, ptr %finished) noinline {
entry:
  %pf = getelementptr ptr, ptr %arrays, i64 ${behind}
  %pf1 = getelementptr ptr, ptr %pf, i64 1
  %flag = load ptr, ptr %pf1
  store atomic i64 1, ptr %flag monotonic, align 8
  %f = load i64, ptr %finished
  br label %lane
lane:
  %k = phi i64 [0, %entry], [%k1, %lane]
  %f0 = phi i64 [%f, %entry], [%f1, %lane]
  %pm = getelementptr i64, ptr %members, i64 %k
  %m = load i64, ptr %pm
  %there = icmp sge i64 %m, 0
  %one = zext i1 %there to i64
  %f1 = add i64 %f0, %one
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k1, ${width}
  br i1 %more, label %lane, label %rest
rest:
  %g = phi i64 [%f1, %lane], [%g1, %taken]
  %next = atomicrmw add ptr %counter, i64 1 seq_cst
  %left = icmp slt i64 %next, %size
  br i1 %left, label %taken, label %done
taken:
  %g1 = add i64 %g, 1
  br label %rest
done:
  store i64 %g, ptr %finished
  ret void
}

; The step, for the optimiser: see _compile.py.
define void @step.own(ptr %kept, ptr %shared) {
entry:
  call void @step(ptr %kept, ptr %shared)
  ret void
}

; Counts steps, for the optimiser.
define internal void @counted(ptr %arrays, i64 %n) noinline {
entry:
  %pe = getelementptr ptr, ptr %arrays, i64 ${behind}
  %pe2 = getelementptr ptr, ptr %pe, i64 2
  %e = load ptr, ptr %pe2
  %pc = getelementptr i8, ptr %e, i64 72
  %count = load ptr, ptr %pc
  call void %count(ptr %e, i64 %n)
  ret void
}

; Steps a member, and those that it takes from the counter, to their ends; returns how many. If `resumed` is not zero they
; go on from where they are, in the results.
define i64 @run(ptr %arrays, ptr %counter, i64 %size, i64 %first, i64 %resumed) {
entry:
  %kept = alloca [${kept} x i64], align 64
  %shared = alloca [${shared} x i64], align 64
  %members = alloca [${width} x i64], align 64
  %finished = alloca i64, align 8
  store i64 0, ptr %finished
  %steps = alloca i64, align 8
  store i64 0, ptr %steps
  %begun = icmp ne i64 %resumed, 0
  br label %clear
clear:
  %c = phi i64 [0, %entry], [%c1, %clear]
  %pc = getelementptr i64, ptr %kept, i64 %c
  store i64 0, ptr %pc
  %c1 = add i64 %c, 1
  %cleared = icmp slt i64 %c1, ${cleared}
  br i1 %cleared, label %clear, label %begin
begin:
  call void @read.shared(ptr %arrays, ptr %shared, i64 0)
  call void @step.before(ptr %shared, ptr %shared)
  %t = call i1 @take(ptr %arrays, ptr %kept, ptr %members, i64 %size, i64 0, i64 %first, i1 %begun)
  br label %fill
fill:
  %k = phi i64 [1, %begin], [%k1, %next]
  %more = icmp slt i64 %k, ${width}
  br i1 %more, label %next, label %saves
next:
  %u = call i1 @take.next(ptr %arrays, ptr %kept, ptr %members, ptr %counter, i64 %size, i64 %k, i1 %begun)
  %k1 = add i64 %k, 1
  br label %fill
saves:
  call void @saves(ptr %arrays, ptr %kept, ptr %shared, ptr %members)
  call void @gathers(ptr %arrays, ptr %kept, ptr %shared, ptr %members)
  %state = call i64 @refill(ptr %arrays, ptr %kept, ptr %members, ptr %counter, i64 %size, i1 %begun, ptr %finished)
  switch i64 %state, label %done [ i64 1, label %step i64 2, label %saves ]
step:
  ; The process may have been asked to stop: see _handler.py.
  %pcell = getelementptr ptr, ptr %arrays, i64 ${behind}
  %cell = load ptr, ptr %pcell
  %pstop = getelementptr i64, ptr %cell, i64 1
  %stop = load atomic i64, ptr %pstop monotonic, align 8
  %stops = icmp ne i64 %stop, 0
  br i1 %stops, label %leave, label %go
leave:
  call void @abandon(ptr %arrays, ptr %members, ptr %counter, i64 %size, ptr %finished)
  br label %done
go:
  ; The step of this code, or an optimised one.
  %pentry = getelementptr ptr, ptr %pcell, i64 2
  %e = load ptr, ptr %pentry
  %pbetter = getelementptr i8, ptr %e, i64 64
  %better = load atomic ptr, ptr %pbetter monotonic, align 8
  %own = icmp eq ptr %better, null
  %step.now = select i1 %own, ptr @step, ptr %better
  call void %step.now(ptr %kept, ptr %shared)
  %n0 = load i64, ptr %steps
  %n1 = add i64 %n0, 1
  store i64 %n1, ptr %steps
  %part = and i64 %n1, 63
  %many = icmp eq i64 %part, 0
  br i1 %many, label %count, label %on
count:
  call void @counted(ptr %arrays, i64 64)
  br label %on
on:
  call void @advance(ptr %kept)
  call void @turn(ptr %arrays, ptr %kept, ptr %members)
  br label %saves
done:
  %n = load i64, ptr %steps
  %rest = and i64 %n, 63
  call void @counted(ptr %arrays, i64 %rest)
  %f = load i64, ptr %finished
  ret i64 %f
}
