-- A group for each 300 scattered rows, by two texts: 50,000 at scale factor 10.
select
    count(*) as groups,
    sum(n) as rows,
    sum(price) as price,
    max(last) as last
from (
    select
        count(*) as n,
        sum(o_totalprice) as price,
        max(o_orderdate) as last
    from orders
    group by o_clerk, o_orderpriority
) as per_group;
