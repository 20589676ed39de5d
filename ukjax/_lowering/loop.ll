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

; Copies the entries of a member's arrays, whose numbers are in a table, to its lane, or those of the first `count` back.
define internal void @carry(ptr %table, ptr %arrays, ptr %kept, i64 %member, i64 %lane, i64 %count, i1 %into) noinline {
entry:
  br label %array
array:
  %k = phi i64 [0, %entry], [%k1, %next]
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
  br label %entry.of
entry.of:
  %e = phi i64 [0, %known], [%e1, %moved]
  %more = icmp slt i64 %e, %n
  br i1 %more, label %move, label %next
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
  br label %entry.of
next:
  %k1 = add i64 %k, 1
  br label %array
done:
  ret void
}

define internal i64 @following(ptr %kept, i64 %lane) {
entry:
  %s = getelementptr i8, ptr %kept, i64 ${following}
  %p = getelementptr ${index}, ptr %s, i64 %lane
  %j = load ${index}, ptr %p
  %wide = ${widen}
  ret i64 %wide
}

; The time to look at next, the last one if there is none, into the slot of a lane.
define internal void @aim(ptr %arrays, ptr %kept, i64 %member, i64 %lane) noinline {
entry:
  %j = call i64 @following(ptr %kept, i64 %lane)
  %over = icmp sge i64 %j, ${times}
  %at = select i1 %over, i64 ${last}, i64 %j
  %pt = getelementptr ptr, ptr %arrays, i64 ${table}
  %table = load ptr, ptr %pt
  %row0 = mul i64 %member, ${table_row}
  %row = getelementptr i8, ptr %table, i64 %row0
  %x = getelementptr ${time}, ptr %row, i64 %at
  %t = load ${time}, ptr %x
  %s = getelementptr i8, ptr %kept, i64 ${due_time}
  %p = getelementptr ${time}, ptr %s, i64 %lane
  store ${time} %t, ptr %p
  %s2 = getelementptr i8, ptr %kept, i64 ${look_time}
  %p2 = getelementptr ${time}, ptr %s2, i64 %lane
  store ${time} %t, ptr %p2
  ret void
}

; The rows of a member as they are given.
define internal void @rows(ptr %arrays, i64 %member) noinline {
entry:
  %pf = getelementptr ptr, ptr %arrays, i64 ${rows}
  %from0 = load ptr, ptr %pf
  %pt = getelementptr ptr, ptr %arrays, i64 ${saved}
  %to0 = load ptr, ptr %pt
  %count = mul i64 ${times}, ${values}
  %first = mul i64 %member, %count
  br label %head
head:
  %k = phi i64 [0, %entry], [%k1, %body]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %body, label %done
body:
  %e = add i64 %first, %k
  %from = getelementptr ${value}, ptr %from0, i64 %e
  %to = getelementptr ${value}, ptr %to0, i64 %e
  %x = load ${value}, ptr %from
  store ${value} %x, ptr %to
  %k1 = add i64 %k, 1
  br label %head
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
  br i1 %begun, label %aimed, label %given
given:
  call void @rows(ptr %arrays, i64 %next)
  br label %aimed
aimed:
  call void @aim(ptr %arrays, ptr %kept, i64 %next, i64 %lane)
  ret i1 true
no:
  store i64 -1, ptr %p
  %s = getelementptr i8, ptr %kept, i64 ${going}
  %g = getelementptr i8, ptr %s, i64 %lane
  store i8 0, ptr %g
  ret i1 false
}

; Whether any lane has a time within its step to look at.
define internal i1 @has.due(ptr %kept, ptr %members) noinline {
entry:
  br label %head
head:
  %k = phi i64 [0, %entry], [%k1, %next]
  %more = icmp slt i64 %k, ${width}
  br i1 %more, label %look, label %none
look:
  %d = call i1 @is.due(ptr %kept, ptr %members, i64 %k)
  br i1 %d, label %found, label %next
next:
  %k1 = add i64 %k, 1
  br label %head
found:
  ret i1 true
none:
  ret i1 false
}
define internal i1 @is.due(ptr %kept, ptr %members, i64 %lane) {
entry:
  %s = getelementptr i8, ptr %kept, i64 ${due}
  %p = getelementptr i8, ptr %s, i64 %lane
  %d = load i8, ptr %p
  %set = icmp ne i8 %d, 0
  %pm = getelementptr i64, ptr %members, i64 %lane
  %m = load i64, ptr %pm
  %there = icmp sge i64 %m, 0
  %j = call i64 @following(ptr %kept, i64 %lane)
  %left = icmp slt i64 %j, ${times}
  %both = and i1 %set, %there
  %all = and i1 %both, %left
  ret i1 %all
}

; Writes down what lanes have looked at.
define internal void @save(ptr %arrays, ptr %kept, ptr %members) noinline {
entry:
  %pr = getelementptr ptr, ptr %arrays, i64 ${saved}
  %saved = load ptr, ptr %pr
  br label %head
head:
  %k = phi i64 [0, %entry], [%k1, %next]
  %more = icmp slt i64 %k, ${width}
  br i1 %more, label %look, label %done
look:
  %d = call i1 @is.due(ptr %kept, ptr %members, i64 %k)
  br i1 %d, label %write, label %next
write:
  %pm = getelementptr i64, ptr %members, i64 %k
  %m = load i64, ptr %pm
  %j = call i64 @following(ptr %kept, i64 %k)
  %first = mul i64 %m, ${times}
  %at = add i64 %first, %j
  %row0 = mul i64 %at, ${values}
  %row = getelementptr ${value}, ptr %saved, i64 %row0
  %s = getelementptr i8, ptr %kept, i64 ${look}
  %slots = getelementptr ${value}, ptr %s, i64 %k
  br label %entry.of
entry.of:
  %e = phi i64 [0, %write], [%e1, %move]
  %some = icmp slt i64 %e, ${values}
  br i1 %some, label %move, label %moved
move:
  %y0 = mul i64 %e, ${room}
  %y = getelementptr i8, ptr %slots, i64 %y0
  %v = load ${value}, ptr %y
  %x = getelementptr ${value}, ptr %row, i64 %e
  store ${value} %v, ptr %x
  %e1 = add i64 %e, 1
  br label %entry.of
moved:
  %f = getelementptr i8, ptr %kept, i64 ${following}
  %pf = getelementptr ${index}, ptr %f, i64 %k
  %before = load ${index}, ptr %pf
  %after = add ${index} %before, 1
  store ${index} %after, ptr %pf
  call void @aim(ptr %arrays, ptr %kept, i64 %m, i64 %k)
  br label %next
next:
  %k1 = add i64 %k, 1
  br label %head
done:
  ret void
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

; Steps a member, and those that it takes from the counter, to their ends; returns how many. If `resumed` is not zero they
; go on from where they are, in the results.
define i64 @run(ptr %arrays, ptr %counter, i64 %size, i64 %first, i64 %resumed) {
entry:
  %kept = alloca [${kept} x i64], align 64
  %shared = alloca [${shared} x i64], align 64
  %members = alloca [${width} x i64], align 64
  %finished = alloca i64, align 8
  store i64 0, ptr %finished
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
  call void @due(ptr %kept, ptr %shared)
  %d = call i1 @has.due(ptr %kept, ptr %members)
  br i1 %d, label %look, label %check
look:
  call void @look(ptr %kept, ptr %shared)
  call void @save(ptr %arrays, ptr %kept, ptr %members)
  br label %saves
check:
  %state = call i64 @refill(ptr %arrays, ptr %kept, ptr %members, ptr %counter, i64 %size, i1 %begun, ptr %finished)
  switch i64 %state, label %done [ i64 1, label %step i64 2, label %saves ]
step:
  call void @step(ptr %kept, ptr %shared)
  call void @advance(ptr %kept)
  br label %saves
done:
  %f = load i64, ptr %finished
  ret i64 %f
}
