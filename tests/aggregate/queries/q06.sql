-- A group for each 7 or 8 scattered rows: 8 million at scale factor 10.
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
    group by l_partkey, l_suppkey
) as per_group;
