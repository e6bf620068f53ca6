-- A group for each 4 rows, which lie side by side: 15 million at scale factor 10.
select
    count(*) as groups,
    sum(n) as rows,
    sum(quantity) as quantity,
    max(price) as price
from (
    select
        count(*) as n,
        sum(l_quantity) as quantity,
        max(l_extendedprice) as price
    from lineitem
    group by l_orderkey
) as per_group;
