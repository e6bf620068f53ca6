-- Q3.4: revenue between two cities in a month
select c_city, s_city, d_year, sum(lo_revenue) as revenue
from customer, lineorder, supplier, date
where lo_custkey = c_custkey
  and lo_suppkey = s_suppkey
  and lo_orderdate = d_datekey
  and c_city in ('UNITED KI1', 'UNITED KI5')
  and s_city in ('UNITED KI1', 'UNITED KI5')
  and d_yearmonth = 'Dec1997'
group by c_city, s_city, d_year
order by d_year, revenue desc;
