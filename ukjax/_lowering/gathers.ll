; What a loop does to gather rows of tables before a step; see _loop.py, which fills in what stands in braces.

@new.from = internal constant [${news} x i64] [${new_from}]
@new.to = internal constant [${news} x i64] [${new_to}]
@new.size = internal constant [${news} x i64] [${new_size}]
@new.item = internal constant [${news} x i64] [${new_item}]
define internal void @renew(ptr %kept, i64 %lane) noinline {
entry:
  br label %head
head:
  %k = phi i64 [0, %entry], [%k1, %next]
  %some = icmp slt i64 %k, ${news}
  br i1 %some, label %known, label %done
known:
  %pf = getelementptr i64, ptr @new.from, i64 %k
  %f = load i64, ptr %pf
  %pt = getelementptr i64, ptr @new.to, i64 %k
  %t = load i64, ptr %pt
  %pn = getelementptr i64, ptr @new.size, i64 %k
  %n = load i64, ptr %pn
  %pi = getelementptr i64, ptr @new.item, i64 %k
  %i = load i64, ptr %pi
  %lane0 = mul i64 %lane, %i
  %from0 = getelementptr i8, ptr %kept, i64 %f
  %from = getelementptr i8, ptr %from0, i64 %lane0
  %to0 = getelementptr i8, ptr %kept, i64 %t
  %to = getelementptr i8, ptr %to0, i64 %lane0
  br label %one
one:
  %e = phi i64 [0, %known], [%e1, %move]
  %more = icmp slt i64 %e, %n
  br i1 %more, label %move, label %next
move:
  %o = mul i64 %e, ${room}
  %x = getelementptr i8, ptr %from, i64 %o
  %y = getelementptr i8, ptr %to, i64 %o
  call void @entries(ptr %y, ptr %x, i64 1, i64 %i, i1 false)
  %e1 = add i64 %e, 1
  br label %one
next:
  %k1 = add i64 %k, 1
  br label %head
done:
  ret void
}

; Gathers rows until no lane has one that is due.
define internal void @gathers(ptr %arrays, ptr %kept, ptr %shared, ptr %members) noinline {
entry:
  br label %again
again:
  call void @gather(ptr %kept, ptr %shared)
  br label %head
head:
  %k = phi i64 [0, %again], [%k1, %next]
  %any = phi i1 [false, %again], [%any1, %next]
  %more = icmp slt i64 %k, ${width}
  br i1 %more, label %look, label %over
look:
  %pm = getelementptr i64, ptr %members, i64 %k
  %m = load i64, ptr %pm
  %there = icmp sge i64 %m, 0
  %s = getelementptr i8, ptr %kept, i64 ${due}
  %p = getelementptr i8, ptr %s, i64 %k
  %d = load i8, ptr %p
  %set = icmp ne i8 %d, 0
  %both = and i1 %set, %there
  br i1 %both, label %renew, label %next
renew:
  call void @renew(ptr %kept, i64 %k)
  call void @pick(ptr %arrays, ptr %kept, i64 %m, i64 %k)
  br label %next
next:
  %any1 = phi i1 [%any, %look], [true, %renew]
  %k1 = add i64 %k, 1
  br label %head
over:
  br i1 %any, label %again, label %done
done:
  ret void
}
