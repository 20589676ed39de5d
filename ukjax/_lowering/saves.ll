; What a loop does to save rows at times of a table; see _loop.py, which fills in what stands in braces.

define internal i64 @following(ptr %kept, i64 %lane) {
entry:
  %j = call i64 @number(ptr %kept, i64 ${following}, i64 %lane)
  ret i64 %j
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

; Saves the rows at all times within the last steps.
define internal void @saves(ptr %arrays, ptr %kept, ptr %shared, ptr %members) noinline {
entry:
  br label %head
head:
  call void @due(ptr %kept, ptr %shared)
  %d = call i1 @has.due(ptr %kept, ptr %members)
  br i1 %d, label %look, label %done
look:
  call void @look(ptr %kept, ptr %shared)
  call void @save(ptr %arrays, ptr %kept, ptr %members)
  br label %head
done:
  ret void
}
